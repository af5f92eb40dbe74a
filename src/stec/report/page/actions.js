// The arithmetic of stec/actions.py. A glimpse is {crop: [top, left, height, width], source: [height, width], mirrored}.
// An affine map is six numbers [a, b, x, c, d, y], row by row.
const actions = (() => {
  function viewMatrix({ crop: [top, left, height, width], source: [sourceHeight, sourceWidth], mirrored }) {
    const w = width / sourceWidth, h = height / sourceHeight;
    return [mirrored ? -w : w, 0, w - 1 + (2 * left) / sourceWidth, 0, h, h - 1 + (2 * top) / sourceHeight];
  }

  function compose([a, b, x, c, d, y], [e, f, u, g, h, v]) {
    return [a * e + b * g, a * f + b * h, a * u + b * v + x, c * e + d * g, c * f + d * h, c * u + d * v + y];
  }

  function invert([a, b, x, c, d, y]) {
    const determinant = a * d - b * c;
    return [d, -b, b * y - d * x, -c, a, c * x - a * y].map((value) => value / determinant);
  }

  function egocentric(first, second) {
    return compose(invert(viewMatrix(first)), viewMatrix(second));
  }

  function paper(first, second) {
    return compose(viewMatrix(second), invert(viewMatrix(first)));
  }

  function official(first, second) {
    const matrix = viewMatrix(first);
    const [a, b, , c, d] = invert(matrix);
    return compose(viewMatrix(second), [a, b, -matrix[2], c, d, -matrix[5]]);
  }

  function allocentric(first, second) {
    const [height, width] = first.source;
    const [top, left, tall, wide] = second.crop.map((value, i) => value - first.crop[i]);
    return [left / width, top / height, wide / width, tall / height, first.mirrored === second.mirrored ? 0 : 1];
  }

  // The corners of x' on the canvas of x, from its top left clockwise as x' sees it.
  function quadrilateral([a, b, x, c, d, y]) {
    return [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([u, v]) => [a * u + b * v + x, c * u + d * v + y]);
  }

  // Which bin each value falls into: as many as there are edges at or below it.
  function codes(values, edges) {
    return values.map((value, i) => edges[i].filter((edge) => value >= edge).length);
  }

  return { viewMatrix, compose, invert, egocentric, paper, official, allocentric, quadrilateral, codes };
})();
