// Choose an image, drag and mirror its two crops, and see the action between them in every representation.
const explorer = (() => {
  const { element, shape, colour, square, tile, reachOf, canvasOfX, panel } = drawing;
  const UNITS = 220;
  const SMALLEST = 0.08; // side of a crop, relative to the image
  const REACH = 14; // pixels from which a corner is caught
  const FORMULAS = {
    egocentric: "Mₓ⁻¹ Mₓ′, where x′ lies on x",
    paper: "Mₓ′ Mₓ⁻¹, the paper's formula",
    official: "the authors' code",
    allocentric: "differences in the image's frame",
  };

  function build(place, data, picture) {
    let image = 0, together = false, glimpses = {};

    const stage = shape("svg", { class: "stage" });
    const photo = shape("image", { x: 0, y: 0, preserveAspectRatio: "none" });
    const crops = { first: crop("first", "x"), second: crop("second", "x′") };
    stage.append(photo, crops.first.group, crops.second.group);
    stage.addEventListener("pointerdown", drag);
    // A finger on a crop moves the crop and not the page. (touch-action does not follow a shape that moves.)
    stage.addEventListener("touchstart", (event) => { if (grasp(event.touches[0])) event.preventDefault(); }, { passive: false });
    const onX = square(UNITS, (context) => {
      if (!glimpses.first) return;
      const place = actions.egocentric(glimpses.first, glimpses.second);
      canvasOfX(context, UNITS, (box) => view(context, glimpses.first, box), place, reachOf(place), colour("second"));
    });
    const second = square(UNITS, (context) => glimpses.second && view(context, glimpses.second, [0, 0, UNITS, UNITS]));

    const thumbs = data.starts.map((_, i) => {
      const small = square(48, (context) => tile(context, picture, i, [0, 0, 48, 48]), { "aria-hidden": "true" });
      return element("button", { type: "button", "aria-label": `image ${i + 1}`, onclick: () => load(i) }, small);
    });
    const mirrors = ["first", "second"].map((name) =>
      element("button", { type: "button", "data-mirror": name, onclick: () => mirror(name) }, `Mirror ${crops[name].label}`));
    const both = element("input", { type: "checkbox", id: "together", onchange: () => { together = both.checked; } });
    const bar = element("div", { class: "bar", style: "margin-top:1rem" }, ...mirrors,
      element("button", { type: "button", onclick: swap }, "Swap x and x′"),
      element("button", { type: "button", onclick: () => load(image) }, "Reset"),
      element("label", { for: "together" }, both, " move both together"));

    const cells = {};
    const cards = Object.entries(data.bins).map(([name, { components }]) => {
      cells[name] = components.map((component, i) => {
        const output = element("output", { "data-value": `${name}.${component}` });
        const strip = element("span", { class: "strip" }, ...data.bins[name].edges[i].concat(0).map(() => element("i")));
        return { output, strip, node: element("div", { class: "cell" }, element("small", {}, component), output, strip) };
      });
      const own = name === data.own ? [element("em", {}, `${data.owner || "this run"} infers this one`)] : [];
      return element("div", { class: "representation" },
        element("h3", {}, name, element("span", {}, FORMULAS[name]), ...own),
        element("div", { class: "cells" }, ...cells[name].map((cell) => cell.node)));
    });
    const note = data.builtin ? [element("p", { class: "quiet" }, "The run's images are not at hand; these are built-in shapes.")] : [];
    place.replaceChildren(...note, element("div", { class: "thumbs", role: "group", "aria-label": "Image" }, ...thumbs),
      element("div", { class: "stage-row" },
        element("figure", { class: "panel" }, stage, element("figcaption", {}, "image with the crops x (blue) and x′ (orange)")),
        panel("x, and where x′ lies on it", onX), panel("x′", second)),
      bar, element("div", { class: "representations" }, ...cards));

    // What a glimpse shows, drawn into a box.
    function view(context, { crop: [top, left, height, width], source: [tall, wide], mirrored }, [x, y, w, h]) {
      context.save();
      context.translate(mirrored ? x + w : x, y);
      context.scale(mirrored ? -1 : 1, 1);
      tile(context, picture, image, [0, 0, w, h], [left / wide, top / tall, width / wide, height / tall]);
      context.restore();
    }

    function crop(name, label) {
      const parts = { halo: shape("rect", { class: "halo" }), frame: shape("rect", { class: "frame" }),
        dot: shape("circle", { class: "dot" }), handle: shape("circle", { class: "handle" }) };
      const group = shape("g", { class: `crop ${name}`, tabindex: 0, role: "group", "aria-roledescription": "movable crop" },
        parts.halo, parts.frame, parts.dot, parts.handle);
      group.addEventListener("keydown", (event) => press(event, name));
      return { group, parts, label };
    }

    // What lies under a pointer: a corner, or else the smaller of the crops around it, which may lie below the other.
    function grasp({ clientX, clientY }) {
      const box = stage.getBoundingClientRect(), [tall, wide] = glimpses.first.source;
      const x = ((clientX - box.left) / box.width) * wide, y = ((clientY - box.top) / box.height) * tall;
      const candidates = Object.entries(glimpses).map(([name, { crop: [top, left, height, width] }]) => ({
        name,
        area: height * width,
        inside: x >= left && x <= left + width && y >= top && y <= top + height,
        pixels: (Math.hypot(x - left - width, y - top - height) * box.width) / wide,
      }));
      const corner = candidates.filter(({ pixels }) => pixels <= REACH).sort((a, b) => a.pixels - b.pixels)[0];
      const crop = corner || candidates.filter(({ inside }) => inside).sort((a, b) => a.area - b.area)[0];
      return crop && { name: crop.name, resizes: Boolean(corner) };
    }

    function drag(event) {
      const found = grasp(event);
      if (!found) return;
      event.preventDefault();
      const { name, resizes } = found, { group } = crops[name];
      group.focus({ preventScroll: true });
      group.setPointerCapture(event.pointerId);
      const box = stage.getBoundingClientRect();
      const begin = structuredClone(glimpses), from = [event.clientX, event.clientY];
      const [tall, wide] = glimpses[name].source;
      const move = (now) => {
        const dx = ((now.clientX - from[0]) / box.width) * wide, dy = ((now.clientY - from[1]) / box.height) * tall;
        glimpses = structuredClone(begin);
        shift(name, resizes, dx, dy);
      };
      const stop = () => {
        group.removeEventListener("pointermove", move);
        group.removeEventListener("pointerup", stop);
        group.removeEventListener("pointercancel", stop);
      };
      group.addEventListener("pointermove", move);
      group.addEventListener("pointerup", stop);
      group.addEventListener("pointercancel", stop);
    }

    function press(event, name) {
      if (drawing.isShortcut(event)) return;
      const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "m" || event.key === "M") mirror(name);
      if (!direction) return;
      event.preventDefault();
      const [tall, wide] = glimpses[name].source;
      shift(name, event.shiftKey, (direction[0] * wide) / 50, (direction[1] * tall) / 50);
    }

    // Moves a crop, or its lower right corner; it stays inside of the image.
    function shift(name, resizes, dx, dy) {
      const bound = (value, low, high) => Math.min(high, Math.max(low, value)); // a drawn crop may be smaller than SMALLEST
      if (resizes) {
        const { crop, source: [tall, wide] } = glimpses[name];
        crop[2] = bound(crop[2] + dy, SMALLEST * tall, tall - crop[0]);
        crop[3] = bound(crop[3] + dx, SMALLEST * wide, wide - crop[1]);
      } else {
        const moving = together ? Object.values(glimpses) : [glimpses[name]];
        for (const { crop: [top, left, height, width], source: [tall, wide] } of moving) {
          dy = bound(dy, -top, tall - height - top);
          dx = bound(dx, -left, wide - width - left);
        }
        for (const { crop } of moving) { crop[0] += dy; crop[1] += dx; }
      }
      update();
    }

    function mirror(name) {
      glimpses[name].mirrored = !glimpses[name].mirrored;
      update();
    }

    function swap() {
      glimpses = { first: glimpses.second, second: glimpses.first };
      update();
    }

    function load(i) {
      image = i;
      glimpses = structuredClone(data.starts[i]);
      thumbs.forEach((button, j) => button.setAttribute("aria-pressed", i === j));
      const [tall, wide] = glimpses.first.source;
      stage.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
      const whole = element("canvas");
      whole.width = whole.height = 512;
      tile(whole.getContext("2d"), picture, i, [0, 0, 512, 512]);
      photo.setAttribute("href", whole.toDataURL());
      photo.setAttribute("width", wide);
      photo.setAttribute("height", tall);
      update();
    }

    function update() {
      for (const [name, { group, parts, label }] of Object.entries(crops)) {
        const { crop: [top, left, height, width], source: [, wide], mirrored } = glimpses[name];
        for (const part of [parts.halo, parts.frame]) {
          for (const [key, value] of Object.entries({ x: left, y: top, width, height })) part.setAttribute(key, value);
        }
        put(parts.dot, mirrored ? left + width : left, top, wide * 0.018);
        put(parts.handle, left + width, top + height, wide * 0.024);
        const [x, y, w, h] = [left, top, width, height].map((value) => Math.round(value * 10) / 10);
        group.setAttribute("aria-label", `crop ${label}: left ${x}, top ${y}, width ${w}, height ${h}${mirrored ? ", mirrored" : ""}`);
      }
      for (const button of mirrors) button.setAttribute("aria-pressed", glimpses[button.dataset.mirror].mirrored);
      onX.paint();
      second.paint();
      for (const [name, { edges }] of Object.entries(data.bins)) {
        const values = actions[name](glimpses.first, glimpses.second);
        actions.codes(values, edges).forEach((code, i) => {
          const { output, strip } = cells[name][i];
          output.textContent = (values[i] < -5e-4 ? "−" : "") + Math.abs(values[i]).toFixed(3);
          [...strip.children].forEach((bin, k) => bin.classList.toggle("on", k === code));
          strip.setAttribute("title", `bin ${code} of 0 to ${edges[i].length}`);
        });
      }
    }

    function put(circle, x, y, r) {
      circle.setAttribute("cx", x);
      circle.setAttribute("cy", y);
      circle.setAttribute("r", r);
    }

    load(0);
    return { state: () => structuredClone(glimpses), load };
  }

  return { build };
})();
