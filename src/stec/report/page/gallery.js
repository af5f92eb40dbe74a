// Pairs of views: the image with both crops, x with x' as it was and as it is inferred, and x'.
const gallery = (() => {
  const { element, colour, square, tile, outline, reachOf, canvasOfX, panel } = drawing;
  const UNITS = 160;

  function corners(glimpse) {
    return actions.quadrilateral(actions.viewMatrix(glimpse)).map((corner) => corner.map((v) => ((v + 1) / 2) * UNITS));
  }

  function card(pair, i, count, sources, views) {
    const mirrored = (glimpse) => (glimpse.mirrored ? ", mirrored" : "");
    const x = (context) => (box) => tile(context, views, i, box);
    const reach = reachOf(pair.true, pair.placed);
    const panels = [
      panel("image", square(UNITS, (context) => {
        tile(context, sources, i, [0, 0, UNITS, UNITS]);
        outline(context, corners(pair.first), colour("first"));
        outline(context, corners(pair.second), colour("second"));
      })),
      panel(`x${mirrored(pair.first)}`, square(UNITS, (context) =>
        canvasOfX(context, UNITS, x(context), pair.true, reach, colour("second")))),
    ];
    if (pair.placed) {
      panels.push(panel("inferred", square(UNITS, (context) =>
        canvasOfX(context, UNITS, x(context), pair.placed, reach, colour("guess"), [6, 4]))));
    }
    panels.push(panel(`x′${mirrored(pair.second)}`, square(UNITS, (context) =>
      tile(context, views, count + i, [0, 0, UNITS, UNITS]))));
    const parts = pair.components.map((part) =>
      element("span", {}, `${part.name} `, element("span", { class: part.code === part.guessCode ? "right" : "wrong" },
        part.code === part.guessCode ? `${signed(part.true)} ✓` : `${signed(part.true)}, inferred ${signed(part.guess)}`)));
    if (pair.components.length && !pair.counts) parts.push("solarized: not counted in training");
    return element("figure", { class: "pair" }, element("div", { class: "views" }, ...panels), element("p", {}, ...parts));
  }

  function signed(value) {
    return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
  }

  function build(place, run, pictures) {
    if (!run.pairs.length) {
      place.replaceChildren(element("p", { class: "quiet" }, "The images are not at hand."));
      return;
    }
    const count = run.pairs.length;
    place.replaceChildren(element("div", { class: "pairs" },
      ...run.pairs.map((pair, i) => card(pair, i, count, pictures[run.sources], pictures[run.views]))));
  }

  return { build };
})();
