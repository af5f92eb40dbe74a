// The features in two dimensions; every point shows its image.
const featureMap = (() => {
  const { element, colour, square, onColours, tile } = drawing;
  const VIRIDIS = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]];
  const MARGIN = 18; // around the points
  const REACH = 18; // pixels from which a point is found

  function ramp(share) {
    const start = matchMedia("(prefers-color-scheme: dark)").matches ? 0.22 : 0; // its dark end is lost on a dark ground
    const at = (start + (1 - start) * Math.max(0, Math.min(1, share))) * (VIRIDIS.length - 1);
    const i = Math.min(VIRIDIS.length - 2, Math.floor(at));
    return `rgb(${VIRIDIS[i].map((from, c) => Math.round(from + (VIRIDIS[i + 1][c] - from) * (at - i))).join(" ")})`;
  }

  function classColour(label, count) {
    return label < 0 ? colour("quiet") : `hsl(${(360 * label) / count} 62% ${label % 2 ? 60 : 46}%)`;
  }

  function build(place, map, picture) {
    const n = map.index.length, classes = map.classes;
    const top = Math.max(...map.magnitude, 0.01);
    let mode = "views", chosen = null, only = null, width = 0, height = 0;

    const canvas = element("canvas", { tabindex: 0, role: "img" });
    const card = element("div", { class: "card", hidden: true });
    const live = element("p", { class: "skip", "aria-live": "polite" });
    const below = element("div");
    const frame = element("div", { class: "map" }, canvas, card);
    const modes = { views: "Views, by magnitude of their action", originals: classes.length ? "Originals, by class" : "Originals" };
    const buttons = Object.entries(modes).map(([key, text]) =>
      element("button", { type: "button", "data-mode": key, onclick: () => turn(key) }, text));
    place.replaceChildren(element("div", { class: "bar" }, ...buttons), frame, below, live);

    const low = [Math.min(...map.x), Math.min(...map.y)], high = [Math.max(...map.x), Math.max(...map.y)];
    const range = [high[0] - low[0] || 1, high[1] - low[1] || 1];
    canvas.style.aspectRatio = Math.max(1, Math.min(2, range[0] / range[1]));
    function position(i) {
      const scale = Math.min((width - 2 * MARGIN) / range[0], (height - 2 * MARGIN) / range[1]);
      return [width / 2 + (map.x[i] - (low[0] + high[0]) / 2) * scale, height / 2 + (map.y[i] - (low[1] + high[1]) / 2) * scale];
    }
    const shown = (i) => (mode === "originals" ? i < n : i >= n) && (only === null || map.label[i % n] === only);
    const dot = (i) => (i < n ? classColour(map.label[i], classes.length) : ramp(map.magnitude[i - n] / top));

    function paint() {
      const scale = devicePixelRatio || 1;
      width = canvas.clientWidth;
      height = canvas.clientHeight;
      canvas.width = width * scale;
      canvas.height = height * scale;
      const context = canvas.getContext("2d");
      context.scale(scale, scale);
      for (let i = 0; i < 3 * n; i++) {
        const inside = mode === "originals" ? i < n : i >= n;
        if (!inside) continue;
        context.globalAlpha = shown(i) ? 0.9 : 0.08;
        context.fillStyle = dot(i);
        context.beginPath();
        context.arc(...position(i), (mode === "originals" ? 3.6 : 2.8) * Math.min(1, 0.4 + width / 900), 0, 2 * Math.PI);
        context.fill();
      }
      context.globalAlpha = 1;
      if (chosen === null) return;
      const family = [chosen % n, n + (chosen % n), 2 * n + (chosen % n)];
      context.strokeStyle = colour("ink");
      context.lineWidth = 1;
      for (const i of family.slice(1)) {
        context.beginPath();
        context.moveTo(...position(family[0]));
        context.lineTo(...position(i));
        context.stroke();
      }
      for (const i of family) {
        context.fillStyle = dot(i);
        context.lineWidth = i === chosen ? 2.5 : 1;
        context.beginPath();
        context.arc(...position(i), i === chosen ? 7 : 4.5, 0, 2 * Math.PI);
        context.fill();
        context.stroke();
      }
    }

    function words(i) {
      const name = map.label[i % n] >= 0 ? classes[map.label[i % n]] : `image ${map.index[i % n]}`;
      const lines = [`${map.split} image ${map.index[i % n]}`];
      if (i < n) lines.push("original");
      else {
        lines.push(`view x${i < 2 * n ? "" : "′"}, magnitude ${map.magnitude[i - n].toFixed(2)}`);
        if (map.mirrored[i - n]) lines.push("mirrored");
      }
      return [name, ...lines];
    }

    function choose(i) {
      if (chosen === i) return;
      chosen = i;
      card.hidden = i === null;
      if (i !== null) {
        const [name, ...lines] = words(i);
        card.replaceChildren(square(112, (context) => tile(context, picture, i, [0, 0, 112, 112])),
          element("b", {}, name), ...lines.map((line) => element("div", { class: "quiet" }, line)));
        const [x, y] = position(i);
        const left = x + 18 + card.offsetWidth < width ? x + 18 : x - 18 - card.offsetWidth;
        card.style.left = `${Math.max(4, Math.min(width - card.offsetWidth - 4, left))}px`;
        card.style.top = `${Math.max(4, Math.min(height - card.offsetHeight - 4, y - card.offsetHeight / 2))}px`;
        live.textContent = [name, ...lines].join(", ");
      }
      paint();
    }

    function find(x, y, allowed = () => true) {
      let best = null, least = Infinity;
      for (let i = 0; i < 3 * n; i++) {
        if (!shown(i) || !allowed(i)) continue;
        const [px, py] = position(i);
        const distance = Math.hypot(px - x, py - y);
        if (distance < least) [best, least] = [i, distance];
      }
      return [best, least];
    }

    function point(event) {
      const box = canvas.getBoundingClientRect();
      const [i, distance] = find(event.clientX - box.left, event.clientY - box.top);
      choose(distance <= REACH ? i : null);
    }
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") choose(null); });
    canvas.addEventListener("blur", () => choose(null));
    canvas.addEventListener("keydown", (event) => {
      if (drawing.isShortcut(event)) return;
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Escape") choose(null);
      if (!step) return;
      event.preventDefault();
      if (chosen === null) { choose(find(width / 2, height / 2)[0]); return; }
      // The nearest point within 45 degrees of the arrow.
      const [x, y] = position(chosen);
      const [i] = find(x, y, (j) => {
        const [px, py] = position(j);
        const along = (px - x) * step[0] + (py - y) * step[1];
        const across = Math.abs((px - x) * step[1]) + Math.abs((py - y) * step[0]);
        return j !== chosen && along > 0 && across <= along;
      });
      if (i !== null) choose(i);
    });

    function turn(key) {
      mode = key;
      only = null;
      choose(null);
      for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.mode === key);
      canvas.setAttribute("aria-label", `${map.method} of features. ${modes[key]}. Arrow keys go from point to point.`);
      if (mode === "views") {
        const stops = [0, 0.2, 0.4, 0.6, 0.8, 1].map(ramp).join(",");
        below.replaceChildren(element("div", { class: "scale" }, "whole image",
          element("i", { style: `background:linear-gradient(90deg,${stops})` }), `${Math.round(100 * top)} % cropped away`));
      } else {
        const names = classes.map((name, label) => {
          const button = element("button", { type: "button", "aria-pressed": "false" },
            element("i", { class: "swatch", style: `background:${classColour(label, classes.length)}` }), name);
          button.addEventListener("click", () => {
            only = only === label ? null : label;
            names.forEach((other, i) => other.setAttribute("aria-pressed", i === only));
            paint();
          });
          return button;
        });
        below.replaceChildren(element("div", { class: "classes" }, ...names));
      }
      paint();
    }

    onColours(canvas, () => turn(mode));
    new ResizeObserver(paint).observe(canvas);
    turn("views");
    return { position, canvas };
  }

  return { build };
})();
