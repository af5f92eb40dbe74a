// Pages whose only drawings are curves.
charts.draw(JSON.parse(document.getElementById("data").textContent));
document.documentElement.dataset.ready = "true";
