// What a page looks like to those who read it: returns sentences about what is wrong, [] when nothing is.
(() => {
  "use strict";
  const wrong = [];
  const name = (e) => `${e.tagName.toLowerCase()}${e.id ? "#" + e.id : ""}.${e.getAttribute("class") || ""} "${(e.textContent || "").trim().slice(0, 40)}"`;
  const shown = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true });
  const color = (text) => {
    const found = text.match(/^rgba?\((.*)\)$/);
    if (!found) throw new Error("a color that is not understood: " + text);
    const [r, g, b, a = 1] = found[1].split(/[\s,/]+/).map(Number);
    return [r, g, b, a];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const chain = (e) => { const found = []; for (; e; e = e.parentElement) found.push(e); return found; };
  const opacity = (e) => chain(e).reduce((all, each) => all * Number(getComputedStyle(each).opacity), 1);
  const behind = (e) => {
    const canvas = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 1] : [255, 255, 255, 1];
    return chain(e).reverse().reduce((under, each) => over(color(getComputedStyle(each).backgroundColor), under), canvas);
  };

  // Nothing sticks out of the window.
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) wrong.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${width}`);
  const scrolls = (e) => chain(e).slice(1).some((each) => /auto|scroll|hidden/.test(getComputedStyle(each).overflowX));
  for (const e of document.body.querySelectorAll("*")) {
    const box = e.getBoundingClientRect();
    if (shown(e) && box.width && (box.right > width + 1 || box.left < -1) && !scrolls(e) && !e.closest(".skip, thead")) wrong.push(`${name(e)} reaches from ${box.left} to ${box.right}`);
  }

  // Text is readable: WCAG AA.
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const radios = [...document.querySelectorAll("input[type=radio]")];
  const texts = [];
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (walker.currentNode.textContent.trim() && !e.closest("script, style, title, .hidden, .skip")) texts.push(e);
  }
  const readable = (elements, when) => {
    for (const e of elements) {
      if (!shown(e)) continue;
      const style = getComputedStyle(e), under = behind(e);
      const ink = color(e.closest("svg") ? style.fill : style.color);
      const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      const found = contrast(over([ink[0], ink[1], ink[2], ink[3] * opacity(e)], under), under);
      if (found < (large ? 3 : 4.5)) wrong.push(`contrast of ${name(e)}${when} is ${found.toFixed(2)}`);
      if (size < 10.5 && !e.closest("svg")) wrong.push(`${name(e)} is written in ${size} px`);
    }
  };
  readable(texts, "");
  const first = radios.find((radio) => radio.checked);
  for (const radio of radios) {
    radio.checked = true;
    readable([...document.querySelectorAll(".tokens span, .ramp span")], ` colored ${radio.id}`);
  }
  if (first) first.checked = true;
  for (const e of document.querySelectorAll("svg[role=img] .curve, svg[role=img] circle, svg[role=img] rect")) {
    const style = getComputedStyle(e), under = behind(e), drawn = style.stroke === "none" ? style.fill : style.stroke;
    const strength = e.classList.contains("faint") ? 1 : opacity(e);
    const ink = color(drawn);
    if (!e.getAttribute("class").startsWith("band") && contrast(over([ink[0], ink[1], ink[2], strength], under), under) < 3) wrong.push(`a curve of ${name(e.closest("figure"))} is too pale`);
  }

  // Whatever is drawn is also told.
  const told = (e, attribute) => (e.getAttribute(attribute) || "").split(/\s+/).map((id) => document.getElementById(id)?.textContent.trim()).join("");
  for (const e of document.querySelectorAll("svg:not([aria-hidden=true])")) {
    if (e.getAttribute("role") !== "img" || !told(e, "aria-labelledby") || !told(e, "aria-describedby")) wrong.push(`${name(e.closest("figure") || e)} has no text that stands for it`);
  }
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((e) => Number(e.tagName[1]));
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) wrong.push(`a heading of level ${level} follows one of ${levels[i - 1]}`); });
  if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) wrong.push("there is not one first heading");

  // Whatever can be used or scrolled is reached by keyboard, and says what it is.
  for (const e of document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")) {
    if (e.tabIndex > 0) wrong.push(`${name(e)} jumps the queue`);
    const label = e.textContent.trim() || e.getAttribute("aria-label") || told(e, "aria-labelledby") || [...(e.labels || [])].map((l) => l.textContent.trim()).join("");
    if (!label) wrong.push(`${name(e)} has no name`);
  }
  for (const e of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(e);
    if (shown(e) && /auto|scroll/.test(style.overflowY + style.overflowX) && (e.scrollHeight > e.clientHeight + 1 || e.scrollWidth > e.clientWidth + 1) && e.tabIndex !== 0) wrong.push(`${name(e)} scrolls, but not by keyboard`);
  }
  return wrong;
})();
