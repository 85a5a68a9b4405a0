// Reading values off charts (pointer and arrow keys) and filtering events. The page is complete without it.
"use strict";
(() => {
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const nearest = (sorted, value) => {
    let low = 0, high = sorted.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle; else high = middle;
    }
    return Math.abs(sorted[low] - value) <= Math.abs(sorted[high] - value) ? low : high;
  };
  const grouped = (number) => String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, "\u2009");

  for (const plot of document.querySelectorAll(".plot[data-chart]")) {
    const data = JSON.parse(document.getElementById("data-" + plot.dataset.chart).textContent);
    const lines = data.lines.filter((line) => line.x.length);
    const steps = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    if (!steps.length) continue;
    const layer = make("div", "reading");
    const live = make("div", "skip");
    live.setAttribute("aria-live", "polite");
    plot.append(layer, live);
    let at = null;

    const show = (index, speak) => {
      at = index;
      const step = steps[index];
      const share = (step - data.from) / (data.to - data.from);
      const reach = (data.to - data.from) / 80;
      const cross = make("div", "cross");
      cross.style.left = 100 * share + "%";
      const tip = make("div", "tip");
      tip.append(make("b", "", "step " + grouped(step)));
      layer.replaceChildren(cross);
      const spoken = [];
      for (const line of lines) {
        const i = nearest(line.x, step);
        if (Math.abs(line.x[i] - step) > reach) continue;
        const row = make("span", "");
        row.append(make("span", "key c" + line.color), make("span", "", line.label), make("i", "", line.text[i]));
        tip.append(row);
        spoken.push(line.label + " " + line.text[i]);
        if (line.y.length && line.y[i] >= 0 && line.y[i] <= 1) {
          const dot = make("div", "dot c" + line.color);
          dot.style.left = (100 * (line.x[i] - data.from)) / (data.to - data.from) + "%";
          dot.style.top = 100 * line.y[i] + "%";
          layer.append(dot);
        }
      }
      layer.append(tip);
      const room = plot.clientWidth, left = share * room, width = tip.offsetWidth;
      tip.style.left = Math.max(-40, left + 14 + width > room ? left - width - 14 : left + 14) + "px";
      if (speak) live.textContent = "step " + grouped(step) + ": " + spoken.join(", ");
    };
    const hide = () => { layer.replaceChildren(); at = null; };

    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      show(nearest(steps, data.from + ((event.clientX - box.left) / box.width) * (data.to - data.from)), false);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const jump = Math.max(1, Math.round(steps.length / 20));
      const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: jump, PageDown: -jump, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") return hide();
      if (!(event.key in moves)) return;
      event.preventDefault();
      const from = at === null ? (moves[event.key] < 0 ? steps.length : -1) : at;
      show(Math.min(steps.length - 1, Math.max(0, from + moves[event.key])), true);
    });
  }

  const form = document.getElementById("event-filters");
  if (form) {
    form.hidden = false;
    const rows = [...document.querySelectorAll("#events-table tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
    const apply = () => {
      const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
      const allowed = new Set([...form.querySelectorAll("[name=severity]:checked")].map((box) => box.value));
      let shown = 0;
      for (const [row, text] of rows) {
        row.hidden = !(allowed.has(row.dataset.severity) && words.every((word) => text.includes(word)));
        shown += row.hidden ? 0 : 1;
      }
      form.elements.count.textContent = shown + " of " + rows.length + " events";
    };
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
  }
})();
