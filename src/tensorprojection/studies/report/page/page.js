"use strict";
// Draws the charts of the page's data. A chart is drawn anew whenever anything about it changes: the
// networks that are hidden, the width, light or dark. That takes a few milliseconds and keeps no state.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const hidden = {};  // run -> the names of its networks that are hidden
  const trials = new Set();  // runs whose single trials are shown
  const reference = {};  // run -> the network that differences are taken from
  const drawn = new Map();  // figure -> its uPlot
  const HEIGHT = 260;

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const ink = model => (model.colour === "#000000" ? colour("--text") : model.colour);
  const isHidden = (run, name) => hidden[run] !== undefined && hidden[run].has(name);
  const number = (value, signed) => {
    if (value === null || value === undefined) return "–";
    const text = Math.abs(value) < 0.001 && value !== 0 ? value.toExponential(2) : value.toFixed(4);
    return signed && value > 0 ? "+" + text : text;
  };

  function chartOf(figure) {
    const own = page.charts[figure.dataset.run];
    const kind = figure.dataset.kind;
    if (kind !== "differences") return own[kind][figure.dataset.index];
    return own.differences[reference[figure.dataset.run]][figure.dataset.index];
  }

  // uPlot's data and series: the bands' two ends, then single trials, then the medians on top.
  function seriesOf(run, chart) {
    const models = Object.fromEntries(page.models[run].map(model => [model.name, model]));
    const lines = chart.lines.filter(line => !isHidden(run, line.model));
    const positive = values => (chart.log ? values.map(v => (v > 0 ? v : null)) : values);
    const data = [chart.epochs], series = [{}], bands = [];
    const add = (values, options) => {
      data.push(positive(values));
      series.push({ points: { show: false }, spanGaps: true, ...options });
      return series.length - 1;
    };
    const shade = line => ink(models[line.model]);
    for (const line of lines.filter(one => one.low.length)) {
      const high = add(line.high, { stroke: "transparent" });
      const low = add(line.low, { stroke: "transparent" });
      bands.push({ series: [high, low], fill: shade(line) + "2e" });
    }
    if (trials.has(run)) {
      for (const line of lines) {
        for (const one of line.trials || []) add(one, { stroke: shade(line) + "70", width: 1 });
      }
    }
    for (const line of lines) {
      add(line.median, {
        stroke: shade(line), width: 2.5, dash: line.dash || models[line.model].dash,
        points: { show: chart.epochs.length < 3, size: 7, fill: shade(line) },
      });
    }
    return { data, series, bands, lines, models };
  }

  function axis(more) {
    const soft = colour("--soft"), line = colour("--line");
    return { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 },
             font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", ...more };
  }

  function draw(figure) {
    const run = figure.dataset.run, chart = chartOf(figure);
    const plot = figure.querySelector(".plot");
    figure.querySelector("figcaption").textContent = chart.title;
    if (drawn.has(figure)) drawn.get(figure).destroy();
    plot.replaceChildren();
    const { data, series, bands, lines, models } = seriesOf(run, chart);
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    const first = chart.epochs[0], last = chart.epochs[chart.epochs.length - 1];
    const options = {
      width: Math.max(200, plot.clientWidth), height: HEIGHT, series, bands,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: {
        x: { time: false, range: [first - 0.4, last + 0.4] },
        y: chart.log ? { distr: 3 } : {},
      },
      axes: [
        axis({ label: "epoch", labelSize: 18, size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }),
        axis({ size: chart.log ? 70 : 62, values: (u, ticks) => ticks.map(v => (v === null ? "" :
               chart.log ? v.toExponential(0) : Number(v.toPrecision(6)).toString())) }),
      ],
      hooks: {
        drawAxes: chart.signed ? [zero] : [],
        setCursor: [u => say(u, tip, chart, lines, models)],
      },
    };
    const made = new uPlot(options, data, plot);
    made.over.addEventListener("mouseleave", () => { tip.hidden = true; });
    plot.append(tip);
    drawn.set(figure, made);
  }

  function zero(u) {
    const y = Math.round(u.valToPos(0, "y", true));
    if (y < u.bbox.top || y > u.bbox.top + u.bbox.height) return;
    u.ctx.save();
    u.ctx.strokeStyle = colour("--soft");
    u.ctx.lineWidth = 2;
    u.ctx.beginPath();
    u.ctx.moveTo(u.bbox.left, y);
    u.ctx.lineTo(u.bbox.left + u.bbox.width, y);
    u.ctx.stroke();
    u.ctx.restore();
  }

  // The values at the epoch under the pointer. Text only: names come from data.
  function say(u, tip, chart, lines, models) {
    const k = u.cursor.idx;
    if (k === null || k === undefined || u.cursor.left < 0) { tip.hidden = true; return; }
    tip.replaceChildren();
    const head = document.createElement("strong");
    head.textContent = `epoch ${chart.epochs[k]}`;
    tip.append(head);
    for (const line of lines) {
      if (line.median[k] === null) continue;
      const row = document.createElement("div"), dot = document.createElement("i");
      dot.style.background = ink(models[line.model]);
      const band = line.low.length && line.low[k] !== null
        ? ` [${number(line.low[k], chart.signed)}, ${number(line.high[k], chart.signed)}]` : "";
      const note = line.notes ? `, ${line.notes[k]}` : "";
      const of = line.of ? `${line.of}, ` : "";
      row.append(dot, `${of}${models[line.model].title}: ${number(line.median[k], chart.signed)}${band}${note}`);
      tip.append(row);
    }
    tip.hidden = false;
    const left = u.over.offsetLeft + u.cursor.left, room = u.root.parentNode.clientWidth;
    const beside = left + 14 + tip.offsetWidth <= room ? left + 14 : left - 14 - tip.offsetWidth;
    tip.style.left = `${Math.min(Math.max(0, beside), Math.max(0, room - tip.offsetWidth))}px`;
    tip.style.top = "8px";
  }

  const figures = [...document.querySelectorAll("figure.chart")];
  const drawAll = run => figures.filter(f => !run || f.dataset.run === run).forEach(draw);

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const { run, model } = button.dataset;
      hidden[run] = hidden[run] || new Set();
      if (!hidden[run].delete(model)) hidden[run].add(model);
      for (const other of document.querySelectorAll(".legend button")) {
        if (other.dataset.run === run && other.dataset.model === model) {
          other.setAttribute("aria-pressed", String(!hidden[run].has(model)));
        }
      }
      drawAll(run);
    });
  }
  for (const box of document.querySelectorAll("input.trials")) {
    box.addEventListener("change", () => {
      trials[box.checked ? "add" : "delete"](box.dataset.run);
      drawAll(box.dataset.run);
    });
  }
  for (const choice of document.querySelectorAll("select.reference")) {
    reference[choice.dataset.run] = choice.value;  // after a reload it may be another than the first
    choice.addEventListener("change", () => {
      reference[choice.dataset.run] = choice.value;
      drawAll(choice.dataset.run);
    });
  }
  // A page is printed on white, whatever it is shown on, and whole: what is folded away is opened.
  const printing = on => {
    document.documentElement.classList.toggle("printing", on);
    for (const part of document.querySelectorAll("article details")) {
      if (on && !part.open) { part.open = true; part.dataset.folded = ""; }
      if (!on && "folded" in part.dataset) { part.open = false; delete part.dataset.folded; }
    }
    drawAll();
  };
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;  // on a phone, the address bar comes and goes
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 100);
  });
  drawAll();
})();
