// Small line charts, one a metric, a line a run.
const charts = (() => {
  const { element, shape, number } = drawing;
  const WIDTH = 320, HEIGHT = 150, LEFT = 38, RIGHT = 6, TOP = 8, BOTTOM = 20;

  const CURVES = {
    loss: ["loss", "weighted sum of all"],
    identity: ["identity loss", "same object or not"],
    prediction: ["prediction loss", "which frame comes next, mean of all steps"],
    utterance: ["utterance loss", "same utterance or not"],
    manipulation: ["manipulation loss", "which action"],
    turn: ["turn loss", "how far turned"],
    identity_accuracy: ["identity accuracy, %", "the other view found", 100],
    prediction_accuracy: ["prediction accuracy, %", "the true frame found", 100],
    utterance_accuracy: ["utterance accuracy, %", "the other window found", 100],
    manipulation_accuracy: ["manipulation accuracy, %", "components in the right bin", 100],
    turn_accuracy: ["turn accuracy, %", "", 100],
    probe_accuracy: ["online probe, %", "classes, on augmented training views", 100],
    classes: ["class loss", "of regions"],
    boxes: ["box loss", "of regions"],
    objectness: ["objectness loss", "of anchors"],
    proposals: ["proposal loss", "boxes, of anchors"],
    pixel_accuracy: ["pixels right, %", "of training images", 100],
    rate: ["learning rate", ""],
    views_per_second: ["views per second", ""],
    images_per_second: ["images per second", ""],
    audio_seconds_per_second: ["seconds of sound per second", ""],
  };
  const HEALTH = {
    effective_rank: ["rank of features", "effective: directions in use; collapsed: 1"],
    embedding_rank: ["rank of embeddings", "effective, of what the identity model compares"],
    feature_std: ["spread of features", "evenly over the sphere: 1; all alike: 0"],
    alignment: ["alignment", "squared distance within a pair; lower is closer"],
    uniformity: ["uniformity", "lower is more even, about −4 at best"],
  };

  // Six colours; the next six runs are dashed, and those after them dotted.
  const hue = (run) => `var(--run-${run % 6})`;
  const pattern = (run) => ["", " dashed", " dotted"][Math.floor(run / 6) % 3];
  const look = (run) => ({ class: pattern(run), style: `color:${hue(run)}` });

  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [10, 5, 2, 1].map((factor) => factor * power).find((size) => size <= 1.5 * rough); // two ticks at least
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
    return found;
  }

  function label(value) {
    const size = Math.abs(value);
    if (size >= 10000) return `${+(value / 1000).toFixed(1)}k`;
    if (size > 0 && size < 0.001) return value.toExponential().replaceAll("-", "−"); // else too long for its place
    return `${+value.toPrecision(6)}`.replace("-", "−");
  }

  function chart(title, about, factor, series) {
    const epochs = series.flatMap((line) => line.epoch);
    const values = series.flatMap((line) => line.values).filter((value) => value !== null);
    let [low, high] = [Math.min(...values), Math.max(...values)].map((value) => value * factor);
    if (low > 0 && low < 0.6 * high) low = 0;
    if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = [low - 0.5, high + 0.5];
    const steps = [...new Set(epochs)].sort((a, b) => a - b), last = steps.at(-1);
    const x = (epoch) => LEFT + (epoch / last) * (WIDTH - LEFT - RIGHT);
    const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);

    const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "img" });
    for (const value of ticks(low, high, 3)) {
      svg.append(shape("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
      svg.append(shape("text", { x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, label(value)));
    }
    for (const value of ticks(0, last, 4)) {
      const anchor = x(value) > WIDTH - 20 ? "end" : "middle";
      svg.append(shape("text", { x: x(value) + (anchor === "end" ? 4 : 0), y: HEIGHT - 5, "text-anchor": anchor }, label(value)));
    }
    for (const line of series) {
      let path = "", pen = "M";
      line.values.forEach((value, i) => {
        if (value === null) { pen = "M"; return; }
        path += `${pen}${x(line.epoch[i]).toFixed(1)} ${y(value * factor).toFixed(1)}`;
        pen = "L";
      });
      const only = path.includes("L") ? "" : " only"; // a single value, which has to be a dot to be seen
      svg.append(shape("path", { class: `curve${only || pattern(line.run)}`, d: path + (only && "h0"), style: `stroke:${hue(line.run)}` }));
    }
    const cursor = shape("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    svg.append(cursor);

    const output = element("output");
    let shown = null;
    function show(epoch) {
      shown = epoch === null ? null : steps[nearest(steps, epoch)];
      cursor.setAttribute("visibility", shown === null ? "hidden" : "visible");
      if (shown !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(shown));
      const texts = series.map((line) => {
        const i = nearest(line.epoch, shown === null ? last : shown);
        const known = line.values[i] !== null && (shown === null || shown <= line.epoch.at(-1));
        return number(known ? line.values[i] * factor : null);
      });
      const when = shown === null ? [] : [`at epoch ${+shown.toFixed(1)}`], several = series.length > 1;
      output.replaceChildren(...texts.map((text, i) =>
        element("span", several ? look(series[i].run) : {}, text)), ...when);
      const spoken = texts.map((text, i) => (several ? `${series[i].name} ${text}` : text));
      svg.setAttribute("aria-label", `${title}: ${[...spoken, ...when].join(", ")}`);
    }
    function nearest(list, target) {
      let best = 0;
      list.forEach((value, i) => { if (Math.abs(value - target) < Math.abs(list[best] - target)) best = i; });
      return best;
    }
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * WIDTH;
      show(Math.max(0, Math.min(last, ((at - LEFT) / (WIDTH - LEFT - RIGHT)) * last)));
    });
    svg.addEventListener("pointerleave", () => show(null));
    svg.addEventListener("blur", () => show(null));
    svg.addEventListener("keydown", (event) => {
      if (drawing.isShortcut(event)) return;
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") show(null);
      if (!step) return;
      event.preventDefault();
      const i = shown === null ? steps.length - 1 : steps.indexOf(shown) + step;
      show(steps[Math.max(0, Math.min(steps.length - 1, i))]);
    });
    show(null);
    return element("figure", { class: "chart" }, element("figcaption", {}, element("h3", {}, title), output), svg,
      element("p", { class: "about" }, about));
  }

  function group(place, kinds, runs) {
    for (const [key, [title, about, factor = 1]] of Object.entries(kinds)) {
      const series = runs
        .map(({ name, curves }, run) => ({ run, name, epoch: curves.epoch || [], values: curves[key] || [] }))
        .filter((line) => line.values.some((value) => value !== null));
      if (series.length) place.append(chart(title, about, factor, series));
    }
    if (!place.children.length) place.append(element("p", { class: "quiet" }, "This run has logged none of it."));
  }

  function draw(runs) {
    if (runs.length > 1) {
      document.getElementById("curve-legend").append(...runs.map((run, i) =>
        element("span", {}, element("i", { class: `swatch${pattern(i)}`, style: `--own:${hue(i)}` }), run.name)));
    }
    group(document.getElementById("curve-charts"), CURVES, runs);
    const health = document.getElementById("health-charts");
    if (health) group(health, HEALTH, runs);
  }

  return { draw, ticks };
})();
