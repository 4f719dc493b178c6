"use strict";
// The zoomable view: a slide, and over it what was found, each with a slider for its opacity.
(function () {
  const VIEWS = JSON.parse(document.getElementById("views").textContent);
  const element = (id) => document.getElementById(id);
  const overlays = element("overlays");
  const viewer = OpenSeadragon({
    id: "zoom",
    drawer: "canvas",
    showNavigationControl: false,
    showNavigator: true,
    navigatorPosition: "TOP_RIGHT",
    maxZoomPixelRatio: 8,
    visibilityRatio: 0.3,
    animationTime: 0.5,
    tileSources: [],
  });
  let view = VIEWS[0];

  function tileSource(image) {
    const most = Math.ceil(Math.log2(Math.max(image.width, image.height, 1)));
    const least = most - image.levels.length + 1;
    return {
      width: image.width,
      height: image.height,
      tileSize: image.tile,
      tileOverlap: 0,
      minLevel: least,
      maxLevel: most,
      getTileUrl: (level, x, y) => image.levels[level - least][y][x],
    };
  }

  function show(number) {
    view = VIEWS[number];
    overlays.replaceChildren(...view.overlays.map(controls));
    const layers = [{ ...view, share: 1, opacity: 1 }, ...view.overlays];
    viewer.open(
      layers.map((layer) => ({
        tileSource: tileSource(layer.image),
        x: 0,
        y: 0,
        width: layer.share,
        opacity: layer.opacity,
      })),
    );
  }

  function controls(overlay, number) {
    const box = document.createElement("div");
    const label = document.createElement("label");
    const slider = document.createElement("input");
    box.className = "overlay";
    Object.assign(slider, { type: "range", min: 0, max: 100, value: 100 * overlay.opacity });
    slider.id = "opacity-" + number;
    slider.addEventListener("input", () => {
      overlay.opacity = slider.value / 100;
      const item = viewer.world.getItemAt(number + 1);
      if (item) item.setOpacity(overlay.opacity);
    });
    label.append(overlay.name, " ", slider);
    box.append(label, ...overlay.legend.map(key));
    return box;
  }

  function key([colour, text]) {
    const found = document.createElement("span");
    const patch = document.createElement("i");
    found.className = "key";
    patch.style.background = colour;
    found.append(patch, text);
    return found;
  }

  function drawScale() {
    const scale = element("scale");
    const wide = viewer.viewport.getContainerSize().x * viewer.viewport.getZoom(true);
    scale.hidden = !view.width_um;
    if (!view.width_um || !wide) return;
    const um = view.width_um / wide; // of a pixel of the screen
    const power = 10 ** Math.floor(Math.log10(120 * um));
    const length = [5, 2, 1].map((n) => n * power).find((n) => n <= 120 * um);
    scale.querySelector("i").style.width = length / um + "px";
    scale.querySelector("span").textContent = length >= 1000 ? length / 1000 + " mm" : length + " µm";
  }

  function zoomBy(factor) {
    viewer.viewport.zoomBy(factor);
    viewer.viewport.applyConstraints();
  }

  element("nearer").addEventListener("click", () => zoomBy(2));
  element("farther").addEventListener("click", () => zoomBy(0.5));
  element("whole").addEventListener("click", () => viewer.viewport.goHome());
  element("which").addEventListener("change", (event) => show(event.target.value));
  for (const event of ["open", "update-viewport", "resize"]) viewer.addHandler(event, drawScale);
  window.tfbig = { viewer, VIEWS };
  show(0);
})();
