"use strict";
// Reading a chart under the pointer or with the arrow keys; without this the tables say the same.
for (const figure of document.querySelectorAll("figure[data-points]")) {
  const points = JSON.parse(figure.dataset.points), labels = JSON.parse(figure.dataset.labels);
  const svg = figure.querySelector("svg"), out = figure.querySelector(".readout"), line = figure.querySelector(".pointer");
  const keys = figure.querySelectorAll(".keys input"), rest = out.textContent;
  let at = points.length - 1;
  const show = (index) => {
    at = Math.max(0, Math.min(points.length - 1, index));
    const [step, x, values] = points[at];
    line.setAttribute("x1", x); line.setAttribute("x2", x); line.removeAttribute("visibility");
    const told = values.map((value, i) => keys.length && !keys[i].checked ? "" : (labels[i] ? labels[i] + " " : "") + value);
    out.textContent = figure.dataset.axis + " " + step + ": " + told.filter(Boolean).join(", ");
  };
  const hide = () => { line.setAttribute("visibility", "hidden"); out.textContent = rest; };
  const near = (event) => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    let best = 0;
    points.forEach((point, i) => { if (Math.abs(point[1] - x) < Math.abs(points[best][1] - x)) best = i; });
    show(best);
  };
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("pointermove", near);
  svg.addEventListener("pointerdown", near);
  svg.addEventListener("pointerleave", () => { if (document.activeElement !== svg) hide(); });
  svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(at); });
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: points.length - 1 }[event.key];
    if (to !== undefined) { show(to); event.preventDefault(); }
  });
}
