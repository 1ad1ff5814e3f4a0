"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const charts = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const TIP_LINES = 24;

  // ---- small helpers

  function make(name, attributes = {}, parent = null, text = null) {
    const svg = ["svg", "g", "line", "path", "rect", "circle", "text", "clipPath", "title"].includes(name);
    const node = svg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  const colour = (index) => `var(--c${index % 8})`;

  function short(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e6) {
      const [digits, power] = value.toExponential(2).split("e");
      return `${Number(digits)}e${Number(power)}`;
    }
    return String(Number(value.toPrecision(4)));
  }

  function ticks(low, high, count) {
    if (!(high > low)) return [low];
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const first = Math.ceil(low / step - 1e-9) * step;
    const found = [];
    for (let i = 0; i <= 2 * count; i++) { // a count, because adding a small step to a large number may not change it
      const t = first + i * step;
      if (t <= high + step * 1e-9 && t !== found[found.length - 1]) found.push(Math.abs(t) < step / 1e6 ? 0 : t);
    }
    return found;
  }

  // Math.max(...values) would put every value on the stack, which has room for about 100,000
  const largest = (values, least = -Infinity) => values.reduce((a, b) => (b > a ? b : a), least);
  const smallest = (values) => values.reduce((a, b) => (b < a ? b : a), Infinity);

  function showTip(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, Math.min(innerHeight - box.height - 4, y + 14))}px`;
  }
  const hideTip = () => { tip.hidden = true; };

  function button(parent, text, label, action) {
    const node = make("button", { type: "button", "aria-label": label, title: label }, parent, text);
    node.addEventListener("click", action);
    return node;
  }

  // A chart that fails says so in its place; the other charts and the buttons still work.
  function attempt(figure, draw) {
    try { draw(); } catch (error) {
      for (const node of [...figure.children]) if (node.tagName !== "FIGCAPTION") node.remove();
      make("p", { class: "note failed" }, figure, `This chart could not be drawn: ${error.message}`);
      console.warn(error);
    }
  }

  function whenResized(figure, node, draw) {
    let width = 0;
    new ResizeObserver(() => {
      const now = Math.round(node.clientWidth);
      if (now && now !== width) { width = now; attempt(figure, draw); }
    }).observe(node);
  }

  // ---- curves: hover, zoom by dragging or buttons or keys, series on and off

  function lines(figure, spec) {
    const hidden = new Set();
    const whole = [smallest(spec.series.map((s) => smallest(s.x))), largest(spec.series.map((s) => largest(s.x)))];
    let range = [...whole];
    let cursor = null;
    let drag = null;
    const svg = make("svg", { class: "plot", tabindex: 0, role: "application", "aria-roledescription": "chart",
      "aria-label": `${spec.title}. ${spec.series.map((s) => s.name).join(", ")}. Arrow keys read values, plus and minus zoom.` }, figure);
    const legend = make("div", { class: "legend" }, figure);
    let geometry = null, overlay = null, known = null;

    const shown = () => spec.series.filter((s) => !hidden.has(s.name));
    const usable = (v) => v !== null && Number.isFinite(v) && (!spec.log || v > 0);

    function limits() {
      let low = Infinity, high = -Infinity;
      for (const s of shown()) s.x.forEach((x, i) => {
        if (x >= range[0] && x <= range[1] && usable(s.y[i])) { low = Math.min(low, s.y[i]); high = Math.max(high, s.y[i]); }
      });
      for (const m of spec.marks || []) if (usable(m.y)) { low = Math.min(low, m.y); high = Math.max(high, m.y); }
      if (spec.bounds) { low = Math.min(low, spec.bounds[0]); high = Math.max(high, spec.bounds[1]); }
      if (!(high >= low)) return spec.log ? [0.1, 1] : [0, 1];
      if (spec.log) { low = Math.log10(low); high = Math.log10(high); }
      const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5;
      return spec.log ? [10 ** (low - room), 10 ** (high + room)] : [low - room, high + room];
    }

    function draw() {
      const width = Math.max(240, svg.clientWidth || 400), height = Math.max(190, Math.min(300, width * 0.58));
      const box = { left: 62, right: 18, top: 8, bottom: 38 };
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.style.height = `${height}px`;
      svg.replaceChildren();
      const [low, high] = limits();
      const f = spec.log ? Math.log10 : (v) => v;
      const inner = { w: width - box.left - box.right, h: height - box.top - box.bottom };
      const X = (v) => box.left + ((v - range[0]) / (range[1] - range[0] || 1)) * inner.w;
      const Y = (v) => box.top + (1 - (f(v) - f(low)) / (f(high) - f(low) || 1)) * inner.h;
      geometry = { X, Y, box, inner, width, height };
      const decades = spec.log ? ticks(f(low), f(high), 5).filter(Number.isInteger).map((t) => 10 ** t) : [];
      const levels = decades.length >= 2 ? decades : spec.log ? ticks(low, high, 4).filter((t) => t > 0) : ticks(low, high, 5);
      for (const t of levels) {
        make("line", { class: "grid", x1: box.left, x2: width - box.right, y1: Y(t), y2: Y(t) }, svg);
        make("text", { x: box.left - 6, y: Y(t) + 4, "text-anchor": "end" }, svg, short(t));
      }
      for (const t of ticks(range[0], range[1], Math.max(3, Math.floor(width / 90)))) {
        make("line", { class: "axis", x1: X(t), x2: X(t), y1: height - box.bottom, y2: height - box.bottom + 4 }, svg);
        make("text", { x: X(t), y: height - box.bottom + 16, "text-anchor": "middle" }, svg, short(t));
      }
      make("line", { class: "axis", x1: box.left, x2: width - box.right, y1: height - box.bottom, y2: height - box.bottom }, svg);
      make("text", { x: box.left + inner.w / 2, y: height - 4, "text-anchor": "middle" }, svg, spec.xlabel);
      make("text", { x: 11, y: box.top + inner.h / 2, "text-anchor": "middle", transform: `rotate(-90 11 ${box.top + inner.h / 2})` }, svg, spec.ylabel);
      const clip = make("clipPath", { id: `clip-${spec.id}` }, svg);
      make("rect", { x: box.left, y: box.top - 2, width: inner.w, height: inner.h + 4 }, clip);
      const body = make("g", { "clip-path": `url(#clip-${spec.id})` }, svg);
      for (const m of spec.marks || []) if (usable(m.y)) {
        make("line", { class: "mark", x1: box.left, x2: width - box.right, y1: Y(m.y), y2: Y(m.y) }, body);
        make("text", { x: width - box.right - 3, y: Y(m.y) - 4, "text-anchor": "end" }, body, m.name);
      }
      for (const s of shown()) {
        let path = "", open = false;
        s.x.forEach((x, i) => {
          if (!usable(s.y[i])) { open = false; return; }
          path += `${open ? "L" : "M"}${X(x).toFixed(1)} ${Y(s.y[i]).toFixed(1)}`;
          open = true;
        });
        make("path", { class: "line", d: path, "data-series": s.name, style: `stroke:${colour(s.colour)}`, ...(s.dash ? { "stroke-dasharray": "5 3" } : {}) }, body);
        if (s.x.length === 1 && usable(s.y[0])) make("circle", { cx: X(s.x[0]), cy: Y(s.y[0]), r: 3, style: `fill:${colour(s.colour)}` }, body);
      }
      overlay = make("g", { "clip-path": `url(#clip-${spec.id})` }, svg);
      known = null;
      drawCursor();
    }

    // What follows the mouse is drawn alone: a chart may have 100,000 points.
    function drawCursor() {
      const { X, Y, box, inner, height } = geometry;
      overlay.replaceChildren();
      if (cursor !== null && cursor >= range[0] && cursor <= range[1]) {
        make("line", { class: "cursor", x1: X(cursor), x2: X(cursor), y1: box.top, y2: height - box.bottom }, overlay);
        for (const [s, i] of atCursor()) if (usable(s.y[i])) make("circle", { cx: X(s.x[i]), cy: Y(s.y[i]), r: 3.2, style: `fill:${colour(s.colour)}` }, overlay);
      }
      if (drag && Math.abs(drag.to - drag.from) > 3) {
        make("rect", { class: "select", x: Math.min(drag.from, drag.to), y: box.top, width: Math.abs(drag.to - drag.from), height: inner.h }, overlay);
      }
    }

    function nearestIndex(xs, x) { // xs rises
      let from = 0, to = xs.length - 1;
      while (from < to) {
        const middle = (from + to) >> 1;
        if (xs[middle] < x) from = middle + 1; else to = middle;
      }
      return from > 0 && x - xs[from - 1] <= xs[from] - x ? from - 1 : from;
    }
    const atCursor = () => shown().filter((s) => s.x.length).map((s) => [s, nearestIndex(s.x, cursor)]);
    function stops() { // updates at which a shown curve has a point
      known ??= [...new Set(shown().flatMap((s) => s.x))].filter((x) => x >= range[0] && x <= range[1]).sort((a, b) => a - b);
      return known;
    }
    const valueAt = (px) => range[0] + ((px - geometry.box.left) / geometry.inner.w) * (range[1] - range[0]);

    function point(x, clientX, clientY) {
      const all = stops();
      if (!all.length) { cursor = null; hideTip(); drawCursor(); return; }
      cursor = all[nearestIndex(all, x)];
      drawCursor();
      const values = atCursor().map(([s, i]) => `${s.name}: ${short(s.y[i])}`);
      const more = values.length > TIP_LINES ? [`and ${values.length - TIP_LINES} more; the legend hides curves`] : [];
      showTip([`${spec.xlabel} ${short(cursor)}`, ...values.slice(0, TIP_LINES), ...more].join("\n"), clientX, clientY);
    }

    function pointByKey(x) {
      const box = svg.getBoundingClientRect();
      point(x, box.left + geometry.X(Math.min(range[1], Math.max(range[0], x))) * (box.width / geometry.width), box.top + 12);
    }

    function zoom(factor) {
      const middle = cursor !== null && cursor >= range[0] && cursor <= range[1] ? cursor : (range[0] + range[1]) / 2;
      const half = Math.min((whole[1] - whole[0]) / 2, ((range[1] - range[0]) / 2) * factor);
      if (stops().length < 3 && factor < 1) return;
      let from = middle - half, to = middle + half;
      if (from < whole[0]) { to += whole[0] - from; from = whole[0]; }
      if (to > whole[1]) { from -= to - whole[1]; to = whole[1]; }
      range = [Math.max(from, whole[0]), Math.min(to, whole[1])];
      draw();
    }
    const reset = () => { range = [...whole]; draw(); };

    const pixel = (event) => { const box = svg.getBoundingClientRect(); return (event.clientX - box.left) * (geometry.width / box.width); };
    svg.addEventListener("pointermove", (event) => {
      if (!geometry) return;
      if (drag) drag.to = pixel(event);
      point(valueAt(pixel(event)), event.clientX, event.clientY);
    });
    svg.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0) { drag = { from: pixel(event), to: pixel(event) }; svg.setPointerCapture(event.pointerId); } });
    svg.addEventListener("pointerup", () => {
      if (drag && Math.abs(drag.to - drag.from) > 8) {
        const ends = [valueAt(drag.from), valueAt(drag.to)].sort((a, b) => a - b);
        const inside = [Math.max(ends[0], range[0]), Math.min(ends[1], range[1])];
        if (stops().some((x) => x >= inside[0] && x <= inside[1])) range = inside;
      }
      drag = null;
      draw();
    });
    svg.addEventListener("pointerleave", () => { if (!drag && overlay) { cursor = null; hideTip(); drawCursor(); } });
    svg.addEventListener("dblclick", reset);
    svg.addEventListener("blur", () => { cursor = null; hideTip(); if (overlay) drawCursor(); });
    svg.addEventListener("keydown", (event) => {
      const all = stops();
      const here = cursor === null ? -1 : all.indexOf(cursor);
      const moves = { ArrowRight: all[Math.min(all.length - 1, here + 1)], ArrowLeft: all[Math.max(0, here < 0 ? all.length - 1 : here - 1)], Home: all[0], End: all[all.length - 1] };
      if (event.key in moves && all.length) pointByKey(moves[event.key]);
      else if (event.key === "+" || event.key === "=") zoom(0.5);
      else if (event.key === "-") zoom(2);
      else if (event.key === "0") reset();
      else if (event.key === "Escape") { cursor = null; hideTip(); if (overlay) drawCursor(); }
      else return;
      event.preventDefault();
    });
    for (const s of spec.series) {
      const node = make("button", { type: "button", "aria-pressed": "true", "data-series": s.name }, legend);
      make("span", { class: "swatch", style: `background:${colour(s.colour)}` }, node);
      make("span", {}, node, s.name);
      node.addEventListener("click", () => {
        if (hidden.has(s.name)) hidden.delete(s.name); else hidden.add(s.name);
        node.setAttribute("aria-pressed", String(!hidden.has(s.name)));
        draw();
      });
    }
    const tools = make("div", { class: "tools" }, legend);
    button(tools, "+", "Zoom in", () => zoom(0.5));
    button(tools, "−", "Zoom out", () => zoom(2));
    button(tools, "All", "Show all", reset);
    whenResized(figure, svg, draw);
  }

  // ---- maps: one canvas a panel, one scale for all

  const RAMP = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
  function shade(share) {
    const place = Math.min(0.99999, Math.max(0, share)) * (RAMP.length - 1), i = Math.floor(place), rest = place - i;
    return RAMP[i].map((v, k) => Math.round(v + (RAMP[i + 1][k] - v) * rest));
  }

  function maps(figure, spec) {
    if (spec.panels.length > 1) figure.classList.add("wide-chart");
    const [low, high] = spec.range;
    const panels = make("div", { class: "panels" }, figure);
    for (const panel of spec.panels) {
      const holder = make("div", { class: "panel" }, panels);
      make("div", {}, holder, panel.name);
      const n = panel.rows.length, kept = panel.kept || [];
      if (panel.kept) {
        const marks = make("svg", { class: "kept", viewBox: `0 0 ${n} 1`, preserveAspectRatio: "none", "aria-hidden": "true" }, holder);
        for (const state of new Set(kept.map(([state]) => state))) {
          const x = (state + 0.5) / panel.every;
          make("line", { x1: x, x2: x, y1: panel.kept_at_end.includes(state) ? 0 : 0.6, y2: 1 }, marks);
        }
      }
      const canvas = make("canvas", { width: n, height: n, tabindex: 0, role: "application", "aria-roledescription": "map",
        "aria-label": `${spec.title}: ${panel.name}. Arrow keys move from cell to cell.` }, holder);
      const paint = canvas.getContext("2d"), image = paint.createImageData(n, n);
      panel.rows.forEach((row, i) => row.forEach((value, j) => {
        if (value === null && spec.sparse) return;
        const rgb = value === null ? RAMP[0] : shade((value - low) / (high - low || 1));
        image.data.set([...rgb, 255], 4 * (i * n + j));
      }));
      paint.putImageData(image, 0, 0);
      let cell = [n - 1, 0];
      const say = (i, j, x, y) => {
        const value = (panel.rows[i] || [])[j];
        const words = j > i ? spec.empty : `${spec.value} ${value === null || value === undefined ? "0" : spec.exponent ? short(10 ** value) : short(value)}`;
        const cell = (step) => Math.floor(step / panel.every);
        const stays = kept.some(([state, first, last]) => cell(state) === j && cell(first) <= i && i <= cell(last));
        showTip(`${panel.name}\n${spec.row} ${i * panel.every}, ${spec.column} ${j * panel.every}\n${words}${stays ? ", kept" : ""}`, x, y);
      };
      canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        const at = (offset, size) => Math.min(n - 1, Math.max(0, Math.floor((offset / size) * n)));
        say(at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width), event.clientX, event.clientY);
      });
      canvas.addEventListener("pointerleave", hideTip);
      canvas.addEventListener("blur", hideTip);
      canvas.addEventListener("keydown", (event) => {
        const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
        if (!(event.key in moves)) return;
        cell = cell.map((v, k) => Math.min(n - 1, Math.max(0, v + moves[event.key][k])));
        const box = canvas.getBoundingClientRect();
        say(cell[0], cell[1], box.left + ((cell[1] + 0.5) / n) * box.width, box.top + ((cell[0] + 0.5) / n) * box.height);
        event.preventDefault();
      });
    }
    const bar = make("canvas", { class: "bar", width: 256, height: 1, "aria-hidden": "true" }, figure);
    const paint = bar.getContext("2d");
    for (let i = 0; i < 256; i++) { paint.fillStyle = `rgb(${shade(i / 255).join(",")})`; paint.fillRect(i, 0, 1, 1); }
    const scale = make("div", { class: "scale" }, figure);
    for (const v of [low, (low + high) / 2, high]) make("span", {}, scale, spec.exponent ? short(10 ** v) : short(v));
  }

  // ---- eigenvalues in the complex plane, over training

  function plane(figure, spec) {
    const panels = make("div", { class: "panels" }, figure);
    if (spec.panels.length > 1) figure.classList.add("wide-chart");
    const reach = 1.12 * largest(spec.panels.flatMap((p) => p.frames.flatMap((f) => f.re.map((re, i) => Math.hypot(re, f.im[i])))), 1);
    const drawings = spec.panels.map((panel) => {
      const holder = make("div", { class: "panel" }, panels);
      const name = make("div", {}, holder, panel.name);
      const svg = make("svg", { class: "plot", viewBox: `${-reach} ${-reach} ${2 * reach} ${2 * reach}`, role: "img", "aria-label": `${spec.title}: ${panel.name}` }, holder);
      const thin = reach / 250;
      for (const [x1, y1, x2, y2] of [[-reach, 0, reach, 0], [0, -reach, 0, reach]]) make("line", { x1, y1, x2, y2, style: `stroke:var(--rule);stroke-width:${thin}` }, svg);
      make("circle", { r: 1, style: `fill:none;stroke:var(--soft);stroke-width:${thin * 1.5}` }, svg);
      const first = make("g", { style: `fill:none;stroke:var(--soft);stroke-width:${thin * 1.4};opacity:.55` }, svg);
      const dots = make("g", { class: "eigenvalues", style: `fill:${colour(panel.colour)};fill-opacity:.8` }, svg);
      const put = (group, frame) => {
        group.replaceChildren();
        frame.re.forEach((re, i) => {
          for (const im of panel.mirrored && frame.im[i] > 0 ? [frame.im[i], -frame.im[i]] : [frame.im[i]]) make("circle", { cx: re, cy: -im, r: reach / 75 }, group);
        });
      };
      if (panel.frames.length > 1) put(first, panel.frames[0]);
      return (share) => {
        const frame = panel.frames[Math.round(share * (panel.frames.length - 1))];
        put(dots, frame);
        name.textContent = frame.step === null ? panel.name : `${panel.name}, update ${frame.step}`;
      };
    });
    const longest = largest(spec.panels.map((p) => p.frames.length));
    const draw = (share) => drawings.forEach((one) => one(share));
    if (longest > 1) {
      const tools = make("div", { class: "tools" }, figure);
      const slider = make("input", { type: "range", min: 0, max: longest - 1, value: longest - 1, "aria-label": "Where in the training" });
      let timer = null;
      const play = button(tools, "Play", "Play the training", () => {
        if (timer) { clearInterval(timer); timer = null; play.textContent = "Play"; return; }
        play.textContent = "Stop";
        if (Number(slider.value) === longest - 1) slider.value = 0;
        timer = setInterval(() => {
          slider.value = Number(slider.value) + 1;
          draw(slider.value / (longest - 1));
          if (Number(slider.value) === longest - 1) { clearInterval(timer); timer = null; play.textContent = "Play"; }
        }, 120);
      });
      tools.appendChild(slider);
      slider.addEventListener("input", () => draw(slider.value / (longest - 1)));
    }
    draw(1);
  }

  // ---- bars

  function bars(figure, spec) {
    const svg = make("svg", { class: "plot", role: "img", "aria-label": `${spec.title}: ${spec.values.join(", ")}` }, figure);
    function draw() {
      const width = Math.max(240, svg.clientWidth || 400), height = 190, left = 36, bottom = 36, top = 8;
      const most = largest(spec.values, 1), w = (width - left - 8) / spec.values.length;
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.style.height = `${height}px`;
      svg.replaceChildren();
      const Y = (v) => top + (1 - v / most) * (height - top - bottom);
      for (const t of ticks(0, most, 4)) {
        make("line", { class: "grid", x1: left, x2: width - 8, y1: Y(t), y2: Y(t) }, svg);
        make("text", { x: left - 5, y: Y(t) + 4, "text-anchor": "end" }, svg, short(t));
      }
      spec.values.forEach((v, i) => {
        const rect = make("rect", { x: left + i * w + 1, y: Y(v), width: Math.max(1, w - 2), height: Y(0) - Y(v), style: `fill:${colour(spec.colour)}` }, svg);
        make("title", {}, rect, `${short(spec.edges[i])} … ${short(spec.edges[i + 1])}: ${v}`);
      });
      spec.labels.forEach((label, i) => make("text", { x: left + (i / (spec.labels.length - 1)) * (width - left - 8), y: height - bottom + 16, "text-anchor": "middle" }, svg, label));
      make("text", { x: left + (width - left) / 2, y: height - 4, "text-anchor": "middle" }, svg, spec.xlabel);
    }
    whenResized(figure, svg, draw);
  }

  // ---- the page

  const kinds = { lines, maps, plane, bars };
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const spec = charts[figure.dataset.chart];
    attempt(figure, () => kinds[spec.kind](figure, spec));
  }

  const theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const name = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
  const label = () => { theme.textContent = name() === "dark" ? "Light" : "Dark"; theme.setAttribute("aria-label", `Switch to ${name() === "dark" ? "light" : "dark"} colours`); };
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = name() === "dark" ? "light" : "dark"; label(); });
  dark.addEventListener("change", label);
  label();
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();
