// Elements, colours and pictures that the other scripts share.
const drawing = (() => {
  function element(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  function shape(tag, attributes = {}, ...children) {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  }

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  // A canvas of that many units a side, sharp on any screen; `draw(context)` is called again when colours change.
  function square(units, draw, attributes = {}) {
    const canvas = element("canvas", attributes);
    const scale = 2;
    canvas.width = canvas.height = units * scale;
    const paint = () => {
      const context = canvas.getContext("2d");
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, units, units);
      draw(context);
    };
    canvas.paint = paint;
    paint();
    onColours(canvas, paint);
    return canvas;
  }

  // Calls `paint` whenever light and dark change, as long as the node is on the page.
  const listeners = new Map();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [node, paint] of listeners) node.isConnected ? paint() : listeners.delete(node);
  });
  function onColours(node, paint) {
    listeners.set(node, paint);
  }

  // Draws tile i of a picture, or a part of it given in shares of its side.
  function tile(context, picture, i, [x, y, width, height], [left, top, wide, tall] = [0, 0, 1, 1]) {
    const side = picture.tile;
    const sx = (i % picture.columns) * side, sy = Math.floor(i / picture.columns) * side;
    context.imageSmoothingQuality = "high";
    context.drawImage(picture.image, sx + left * side, sy + top * side, wide * side, tall * side, x, y, width, height);
  }

  // A closed line through points, with a dot at the first.
  function outline(context, points, stroke, dash = []) {
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.setLineDash([]);
    context.lineJoin = "round";
    context.strokeStyle = colour("paper");
    context.globalAlpha = 0.5;
    context.lineWidth = 3.2;
    context.stroke();
    context.globalAlpha = 1;
    context.setLineDash(dash);
    context.strokeStyle = context.fillStyle = stroke;
    context.lineWidth = 2;
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.arc(points[0][0], points[0][1], 3.5, 0, 2 * Math.PI);
    context.fill();
  }

  // How far a ground goes from the middle of x, in halves of its side: twice, or to the corners of an x' beyond that.
  function reachOf(...places) {
    const far = places.flatMap((place) => (place ? actions.quadrilateral(place).flat().map(Math.abs) : []));
    return Math.min(8, Math.max(2, ...far.map((value) => 1.08 * value)));
  }

  // x in the middle of a larger ground, so that an x' beyond its border can be seen.
  function canvasOfX(context, units, drawX, place, reach, stroke, dash) {
    const put = (value) => ((value / reach + 1) / 2) * units;
    const box = [put(-1), put(-1), units / reach, units / reach];
    context.fillStyle = colour("ground");
    context.fillRect(0, 0, units, units);
    drawX(box);
    context.strokeStyle = colour("first");
    context.lineWidth = 2;
    context.strokeRect(...box);
    if (!place) return;
    const corners = actions.quadrilateral(place).map((corner) => corner.map(put));
    outline(context, corners, stroke, dash);
  }

  function panel(caption, canvas) {
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", caption);
    return element("figure", { class: "panel" }, canvas, element("figcaption", {}, caption));
  }

  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size < 0.01) return `${+value.toPrecision(2)}`.replace("-", "−");
    const text = size >= 1000 ? Math.round(size).toLocaleString("en") : size.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
    return (value < 0 ? "−" : "") + text;
  }

  // Keys that are the browser's, such as Alt with an arrow: back to the page before.
  function isShortcut({ altKey, ctrlKey, metaKey }) {
    return altKey || ctrlKey || metaKey;
  }

  return { element, shape, colour, square, onColours, tile, outline, reachOf, canvasOfX, panel, number, isShortcut };
})();
