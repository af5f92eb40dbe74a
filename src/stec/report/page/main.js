// Brings data and drawings together. `report` is for a console, and for the tests.
const report = { actions };
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  await Promise.all(data.pictures.map((picture) => {
    picture.image = new Image();
    picture.image.src = picture.src;
    return picture.image.decode();
  }));
  charts.draw(data.runs);

  function show(index) {
    const run = data.runs[index], place = document.getElementById("map-place");
    for (const block of document.querySelectorAll("[data-run]")) block.hidden = Number(block.dataset.run) !== index;
    if (run.map) report.map = featureMap.build(place, run.map, data.pictures[run.map.picture]);
    else place.replaceChildren(drawing.element("p", { class: "quiet" }, "No map: the run's images or its weights are not at hand."));
    gallery.build(document.getElementById("pair-place"), run, data.pictures);
  }

  const choice = document.getElementById("run");
  if (choice) choice.addEventListener("change", () => show(Number(choice.value)));
  show(0);
  report.explorer = explorer.build(document.getElementById("explorer-place"), data.explorer, data.pictures[data.explorer.picture]);
  report.data = data;
  document.documentElement.dataset.ready = "true";
})();
