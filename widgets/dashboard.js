/* The dashboard in the browser. uPlot stands before this text (dashboard.py joins them), so the module is whole by itself.
 *
 * Words: a snapshot is everything, an increment is news (board.py makes both). One store per model applies them, so every
 * view of the model shows the same. Whatever ranks say arrives through textContent or title: it is text, never markup.
 */

/* global uPlot */

const ROW = { state: 0, waitingFor: 1, step: 2, speed: 3, comm: 4, wait: 5, gbps: 6, cpu: 7, rss: 8, gpu: 9, logged: 10 };
const GPU = { util: 0, memory: 1, power: 2, temperature: 3, nvlinkTx: 4, nvlinkRx: 5, pcieTx: 6, pcieRx: 7 }; // protocol.py's GPU_FIGURES
const RATES = ["samples/s", "allreduce GB/s", "communication %"];
const LOG = "log:";
const MAX_LINES = 200;
const MAX_LOGGED_COLUMNS = 3;
const STATES = { compute: "computing", collective: "in collective", prompt: "at a prompt" };
const ENDED_BADLY = new Set(["failed", "dead", "interrupted"]);
const NONE = "–";

// ---- numbers as people read them (units.py says the same)

const missing = (v) => v === null || v === undefined || typeof v === "string";
const grouped = (v, digits = 0) => v.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

function number(v) {
  if (missing(v)) return NONE;
  const size = Math.abs(v);
  if (size >= 1e6) return size < 1e9 ? `${(v / 1e6).toPrecision(3)} M` : `${(v / 1e9).toPrecision(3)} G`;
  if (size >= 99.95 || size === 0) return grouped(v);
  return size >= 9.995 ? v.toFixed(1) : size >= 0.0995 ? v.toFixed(2) : v.toPrecision(2);
}
function metric(v) {
  if (typeof v === "string") return v;
  if (missing(v)) return NONE;
  const size = Math.abs(v);
  if (size && !(size >= 1e-3 && size < 1e6)) return v.toExponential(2);
  return Number.isInteger(v) ? grouped(v, 0) : size >= 1000 ? grouped(v, 1) : v.toPrecision(4);
}
/** Ticks are round already: no trailing zeros. */
const tick = (v) => (Math.abs(v) >= 1000 ? number(v) : String(Number(v.toPrecision(4))));
const multiple = (times) => (times < 9.95 ? `${times.toFixed(1)}x` : ">10x");
const percent = (share) => (missing(share) ? NONE : `${Math.round(100 * share)} %`);

function size(bytes) {
  if (!bytes) return NONE;
  if (bytes < 1e6) return `${Math.round(bytes / 1e3)} kB`;
  const [unit, scale] = bytes >= 1e9 ? ["GB", 1e9] : ["MB", 1e6];
  return `${bytes < 100 * scale ? Number((bytes / scale).toPrecision(3)) : Math.round(bytes / scale)} ${unit}`;
}
/** Bytes per second both ways together; a link that is idle is no absent one. */
function rate(sent, received) {
  if (missing(sent) || missing(received)) return NONE;
  return sent + received >= 1e3 ? `${size(sent + received)}/s` : "0";
}
function duration(s) {
  if (s < 60) return `${s.toFixed(1)} s`;
  const two = (n) => String(n).padStart(2, "0");
  const total = Math.round(s);
  const [h, m] = [Math.floor(total / 3600), Math.floor(total / 60) % 60];
  return h ? `${h}:${two(m)}:${two(total % 60)}` : `${m}:${two(total % 60)}`;
}

// ---- elements

function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

const FEW = ["#4c7bd9", "#e0803a", "#2f9e78", "#c9508c", "#8a6ad4", "#a98a1d", "#2b9fb5", "#d1555b"];
function colour(index, count) {
  if (count <= FEW.length) return FEW[index];
  return `hsl(${Math.round(265 - (120 * index) / (count - 1))} 48% ${index % 2 ? 60 : 52}%)`;
}

// ---- state

function makeStore(model, signal) {
  const views = new Set();
  const store = { state: null, views, changed: () => views.forEach((view) => view()) };

  function takeSnapshot() {
    const snapshot = model.get("snapshot");
    if (!snapshot || (store.state && snapshot.seq < store.state.seq)) return;
    store.state = structuredClone(snapshot);
    store.changed();
  }
  function takeIncrement(news) {
    const state = store.state;
    if (!state || typeof news !== "object" || news.seq <= state.seq || state.finished) return;
    if (news.seq !== state.seq + 1) model.send("snapshot"); // a gap: the curves miss some columns until it comes
    for (const key of ["seq", "t", "names", "unnamed", "slow", "wait", "totals"]) state[key] = news[key];
    Object.assign(state.rows, news.rows);
    if (news.curves) appendColumns(state, news.curves);
    if (news.log) {
      const unseen = news.lines - state.lines; // a snapshot taken between two increments has some of them
      state.log = state.log.concat(unseen > 0 ? news.log.slice(-unseen) : []).slice(-MAX_LINES);
      state.lines = news.lines;
    }
    if (news.open) state.open = news.open;
    store.changed();
  }
  model.on("change:snapshot", takeSnapshot);
  model.on("msg:custom", takeIncrement);
  signal.addEventListener("abort", () => {
    model.off("change:snapshot", takeSnapshot);
    model.off("msg:custom", takeIncrement);
  });
  takeSnapshot();
  return store;
}

function appendColumns(state, { t, y }) {
  const { curves, ranks } = state;
  const hole = () => ranks.map(() => null);
  const last = curves.t.at(-1) ?? -1;
  const from = t.findIndex((when) => when > last); // a snapshot taken between two increments has some of them
  if (from < 0) return;
  for (const name of Object.keys(y)) if (!curves.y[name]) curves.y[name] = curves.t.map(hole);
  for (const name of Object.keys(curves.y)) curves.y[name].push(...(y[name] ?? t.map(hole)).slice(from));
  curves.t.push(...t.slice(from));
}

// ---- one chart

function makeChart(label, theme, sync) {
  const tabs = h("div", { class: "hvd-tabs", role: "group", "aria-label": `${label} shown` });
  const readout = h("div", { class: "hvd-readout", "aria-hidden": "true" });
  const canvas = h("div", { class: "hvd-plot", role: "img" });
  const root = h("section", { class: "hvd-chart" }, h("div", { class: "hvd-chart-head" }, tabs, readout), canvas);
  const chart = { root, picked: null, shown: null };
  let plot = null;
  let ranks = [];

  function options(count) {
    const axis = { stroke: () => theme().soft, font: theme().font, grid: { stroke: () => theme().grid, width: 1 }, ticks: { show: false } };
    const lines = ranks.map((rank, i) => ({ stroke: colour(i, count), width: count > 8 ? 1 : 1.5, spanGaps: true, points: { show: false } }));
    return {
      width: 300, height: 148, legend: { show: false }, focus: { alpha: 0.14 }, padding: [8, 12, 0, 0],
      scales: { x: { time: false }, y: { range: (_u, low, high) => span(low, high, RATES.includes(chart.shown)) } },
      cursor: { sync: { key: sync }, points: { show: false }, drag: { x: false, y: false }, y: false },
      axes: [
        { ...axis, size: 22, gap: 4, space: 60, values: (_u, ticks) => ticks.map((v) => (v < 60 ? `${v} s` : duration(v))) },
        { ...axis, size: 46, gap: 6, space: 28, values: (_u, ticks) => ticks.map(tick) },
      ],
      series: [{}, ...lines],
      hooks: { setCursor: [readCursor] },
    };
  }
  function readCursor(u) {
    const at = u.cursor.idx;
    if (at === null || at === undefined) return say(readout, "");
    const values = u.data.slice(1).map((series) => series[at]).filter((v) => v !== null && v !== undefined);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const text = low === high ? metric(low) : `${metric(low)} … ${metric(high)}`;
    say(readout, values.length ? `${duration(u.data[0][at])}   ${text}` : "");
  }
  chart.tabs = (names, changed) => {
    const wanted = names.map((name) => (name.startsWith(LOG) ? name.slice(LOG.length) : name));
    if (wanted.length !== tabs.children.length) {
      tabs.replaceChildren(...names.map((name, i) => {
        const button = h("button", { type: "button", class: "hvd-tab" }, wanted[i]);
        button.addEventListener("click", () => { chart.picked = name; changed(); });
        return button;
      }));
    }
    [...tabs.children].forEach((tab, i) => tab.setAttribute("aria-pressed", String(names[i] === chart.shown)));
  };
  chart.draw = (state, name) => {
    chart.shown = name;
    if (!plot || ranks.length !== state.ranks.length) {
      ranks = state.ranks;
      plot?.destroy();
      plot = new uPlot(options(ranks.length), [[]], canvas);
      chart.fit();
    }
    const columns = state.curves.y[name] ?? [];
    plot.setData([state.curves.t, ...ranks.map((_r, i) => columns.map((column) => column[i]))]);
    const last = (columns.at(-1) ?? []).map(metric).join(", ");
    canvas.setAttribute("aria-label", `${name.replace(LOG, "")} of ${ranks.length} ranks over time; last values ${last}`);
  };
  chart.fit = () => {
    const width = Math.floor(canvas.clientWidth);
    if (plot && width > 0 && width !== plot.width) plot.setSize({ width, height: 148 });
  };
  chart.focus = (index) => plot?.setSeries(index < 0 ? null : index + 1, { focus: index >= 0 });
  chart.redraw = () => plot?.redraw(false, true);
  chart.destroy = () => plot?.destroy();
  return chart;
}

/** Room above and below; rates, and values near zero, are seen against zero. */
function span(low, high, zero) {
  if (low === null || high === null) return [0, 1];
  const from = zero || (low >= 0 && low < 0.6 * high) ? 0 : low - 0.1 * (high - low || Math.abs(low) || 1);
  return [from, high + 0.08 * (high - from || 1)];
}

// ---- figures of all ranks

function makeFigures() {
  const root = h("dl", { class: "hvd-figures" });
  const cells = new Map();
  function put(label, value, hint, there = true) {
    if (!cells.has(label)) {
      const dd = h("dd");
      const cell = h("div", { class: "hvd-figure", hidden: "" }, h("dt", { title: hint }, label), dd);
      root.append(cell);
      cells.set(label, { cell, dd });
    }
    const { cell, dd } = cells.get(label);
    say(dd, value);
    show(cell, there || !cell.hidden); // what was there once stays, so that nothing jumps
  }
  return {
    root,
    update({ totals, names }) {
      put("samples/s", number(totals.samples_per_s), "training samples per second, all ranks together", totals.samples_per_s > 0);
      put("step", grouped(totals.step), "optimizer steps", totals.step > 0);
      put("communication", percent(totals.comm), "share of time in collectives, mean of the ranks", totals.comm > 0);
      put("allreduce GB/s", number(totals.gbps), "bytes reduced per second spent in collectives, mean of the ranks", totals.gbps > 0);
      names.slice(0, MAX_LOGGED_COLUMNS).forEach((name, i) => put(name, metric(totals.logged[i]), "last logged value, mean of the ranks"));
    },
  };
}

// ---- table of ranks

const whole = (v, unit) => (missing(v) ? "" : `${Math.round(v)} ${unit}`);
const GPU_COLUMNS = [ // head, text, the figure without which there is no such column
  ["GPU", (gpu) => whole(gpu[GPU.util], "%") || NONE, GPU.util],
  ["GPU memory", (gpu) => size(gpu[GPU.memory]), GPU.memory],
  ["power", (gpu) => [whole(gpu[GPU.power], "W"), whole(gpu[GPU.temperature], "°C")].filter(Boolean).join(", ") || NONE, GPU.power],
  ["NVLink", (gpu) => rate(gpu[GPU.nvlinkTx], gpu[GPU.nvlinkRx]), GPU.nvlinkTx],
  ["PCIe", (gpu) => rate(gpu[GPU.pcieTx], gpu[GPU.pcieRx]), GPU.pcieTx],
];

function makeTable(onFocus, onPick) {
  const head = h("tr");
  const body = h("tbody");
  const table = h("table", {}, h("caption", {}, "Ranks"), h("thead", {}, head), body);
  const root = h("div", { class: "hvd-ranks", tabindex: "0", role: "region", "aria-label": "Ranks" }, table);
  const rows = new Map();
  let layout = "";

  function columns(state) {
    const logged = state.names.slice(0, MAX_LOGGED_COLUMNS).map((name, i) => [name, (row) => metric(row[ROW.logged][i])]);
    const text = [
      ["step", (row) => grouped(row[ROW.step])], ...logged, ["samples/s", (row) => number(row[ROW.speed])],
      ["comm", (row) => percent(row[ROW.comm]), "bar"], ["GB/s", (row) => number(row[ROW.gbps])],
      ["CPU", (row) => (missing(row[ROW.cpu]) ? NONE : `${Math.round(row[ROW.cpu])} %`)], ["memory", (row) => size(row[ROW.rss])],
    ];
    const gpus = Object.values(state.rows).map((row) => row[ROW.gpu]);
    return text.concat(GPU_COLUMNS.filter(([, , figure]) => gpus.some((gpu) => !missing(gpu[figure]))).map(([name, say]) => [name, (row) => say(row[ROW.gpu])]));
  }
  function makeRow(rank, index, count, shape) {
    const button = h("button", { type: "button", class: "hvd-rank", "aria-pressed": "false", "aria-label": `rank ${rank}: show alone` });
    const swatch = h("span", { class: "hvd-swatch" });
    swatch.style.background = colour(index, count);
    button.append(swatch, String(rank));
    button.addEventListener("click", () => onPick(rank));
    const slow = h("span", { class: "hvd-slow" });
    const share = h("span", { class: "hvd-share", title: "share of the other ranks' time that goes in waiting for this one" });
    const [dot, state, waits] = [h("span", { class: "hvd-dot" }), h("span", { class: "hvd-state" }), h("span", { class: "hvd-waits" })];
    const cells = shape.map(([, , kind]) => {
      const [text, cell] = [h("span"), h("td", { class: kind ?? "" })];
      const bars = kind ? [h("i", { class: "hvd-overlap" }), h("i", { class: "hvd-blocked" })] : [];
      cell.append(...(kind ? [h("span", { class: "hvd-bar", title: "dark: the rank's code is blocked; light: overlapped with computing" }, ...bars)] : []), text);
      return { cell, text, bars };
    });
    const row = h("tr", {}, h("th", { scope: "row" }, button, " ", slow), h("td", { class: "left" }, dot, state, " ", share, " ", waits), ...cells.map((c) => c.cell));
    row.addEventListener("pointerenter", () => onFocus(rank));
    row.addEventListener("pointerleave", () => onFocus(null));
    return { row, button, slow, share, state, waits, cells };
  }
  function build(state, shape) {
    head.replaceChildren(h("th", { scope: "col", class: "left" }, "rank"), h("th", { scope: "col", class: "left" }, h("span", {}, "state")), ...shape.map(([name]) => h("th", { scope: "col" }, name)));
    rows.clear();
    state.ranks.forEach((rank, i) => rows.set(rank, makeRow(rank, i, state.ranks.length, shape)));
    body.replaceChildren(...[...rows.values()].map((r) => r.row));
  }
  return {
    root,
    update(state, picked) {
      const shape = columns(state);
      const wanted = JSON.stringify([state.ranks, shape.map(([name]) => name)]);
      if (wanted !== layout) build(state, shape);
      layout = wanted;
      for (const [rank, parts] of rows) {
        const row = state.rows[rank];
        const wait = Math.min(row[ROW.wait] ?? 0, row[ROW.comm] ?? row[ROW.wait] ?? 0);
        parts.row.dataset.state = row[ROW.state];
        parts.row.dataset.ended = String(ENDED_BADLY.has(row[ROW.state]));
        parts.button.setAttribute("aria-pressed", String(rank === picked));
        const slow = state.slow?.[rank];
        parts.row.dataset.slow = String(Boolean(slow));
        parts.slow.style.visibility = slow ? "visible" : "hidden";
        say(parts.slow, slow ? `slow ${multiple(slow[0])}` : "");
        show(parts.slow, rows.size > 1);
        say(parts.share, slow ? `others wait ${percent(slow[1])}` : "");
        show(parts.share, Boolean(slow));
        say(parts.state, STATES[row[ROW.state]] ?? row[ROW.state]);
        say(parts.waits, row[ROW.waitingFor]);
        parts.waits.title = row[ROW.waitingFor];
        shape.forEach(([, text], i) => {
          say(parts.cells[i].text, text(row));
          const [overlap, blocked] = parts.cells[i].bars;
          if (overlap) overlap.style.width = `${100 * (row[ROW.comm] ?? 0)}%`;
          if (blocked) blocked.style.width = `${100 * wait}%`;
        });
      }
    },
  };
}

// ---- output of the ranks

function makeLog() {
  const lines = h("div", { class: "hvd-lines", role: "log", "aria-live": "off", "aria-label": "Output of the ranks", tabindex: "0" });
  const note = h("span", { class: "hvd-note" });
  const root = h("details", { class: "hvd-log", open: "" }, h("summary", { class: "hvd-log-head" }, h("span", {}, "output"), note), lines);
  function line(state, [rank, stream, text], open) {
    const tag = h("span", { class: "hvd-tag" }, `[${rank}]`);
    tag.style.color = colour(state.ranks.indexOf(rank), state.ranks.length);
    return h("div", { class: open ? "hvd-line hvd-open" : "hvd-line", "data-stream": stream === "stderr" ? "stderr" : "stdout" }, tag, text);
  }
  let [key, chosen] = ["", ""];
  return {
    root,
    update(state, picked) {
      const choice = `${state.finished} ${picked}`;
      if (choice !== chosen) root.open = !state.finished || picked !== null; // at the end the cell shows it all, below
      chosen = choice;
      const wanted = `${state.lines} ${picked} ${JSON.stringify(state.open)}`;
      show(root, state.log.length + state.open.length > 0);
      if (wanted === key) return;
      key = wanted;
      const mine = (entry) => picked === null || entry[0] === picked;
      const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 30;
      lines.replaceChildren(...state.log.filter(mine).map((l) => line(state, l, false)), ...state.open.filter(mine).map((l) => line(state, l, true)));
      const hidden = state.lines - state.log.length;
      say(note, [picked === null ? "" : `rank ${picked}`, hidden > 0 ? `${grouped(hidden)} earlier lines` : ""].filter(Boolean).join(" · "));
      if (atEnd) lines.scrollTop = lines.scrollHeight;
    },
  };
}

// ---- the panel

function readTheme(root) {
  const style = getComputedStyle(root);
  return { soft: style.getPropertyValue("--hvd-soft"), grid: style.getPropertyValue("--hvd-grid"), font: `11px ${style.fontFamily}` };
}

function headline(state) {
  if (!state.finished) return ["running", "live"];
  const bad = state.ranks.filter((rank) => ENDED_BADLY.has(state.rows[rank][ROW.state]));
  if (!bad.length) return ["finished", "good"];
  const what = [...new Set(bad.map((rank) => state.rows[rank][ROW.state]))].join(", ");
  return [`${what} on ${bad.length === 1 ? "rank" : "ranks"} ${bad.slice(0, 8).join(", ")}${bad.length > 8 ? ", …" : ""}`, "bad"];
}

function makeView(store, el, signal) {
  const root = h("article", { class: "hvd", "aria-label": "hvd dashboard" });
  let theme = { soft: "", grid: "", font: "11px sans-serif" };
  let [hovered, picked, frame] = [null, null, 0];
  const [title, status, clock, note] = [h("h3"), h("span", { class: "hvd-status", role: "status" }), h("span", { class: "hvd-clock" }), h("span", { class: "hvd-note" })];
  const wait = h("p", { class: "hvd-wait", role: "status" });
  const figures = makeFigures();
  const key = `hvd-${Math.random()}`;
  const logged = makeChart("Logged value", () => theme, key);
  const rates = makeChart("Rate", () => theme, key);
  const table = makeTable((rank) => { hovered = rank; focus(); }, (rank) => { picked = picked === rank ? null : rank; focus(); schedule(); });
  const log = makeLog();
  const charts = h("div", { class: "hvd-charts" }, logged.root, rates.root);
  root.append(h("header", {}, title, status, note, clock), wait, figures.root, charts, table.root, log.root);
  el.append(root);

  const focus = () => {
    const index = store.state.ranks.indexOf(hovered ?? picked);
    for (const chart of [logged, rates]) chart.focus(index);
  };
  function draw() {
    frame = 0;
    const state = store.state;
    if (!state) return;
    const [word, kind] = headline(state);
    root.dataset.kind = kind;
    say(title, state.title);
    say(status, word);
    say(clock, duration(state.t));
    say(note, [state.finished ? "means over the cell" : "", state.unnamed ? `${grouped(state.unnamed)} more logged names not shown` : ""].filter(Boolean).join(" · "));
    say(wait, state.wait);
    show(wait, state.wait !== "");
    figures.update(state);
    const names = state.names.map((name) => LOG + name);
    const moved = (rate) => (state.curves.y[rate] ?? []).some((column) => column.some((v) => v > 0));
    const rated = RATES.filter(moved);
    const active = names.length + rated.length > 0; // a cell that only computes has a table and its output, no empty charts
    show(figures.root, active);
    show(charts, active && state.curves.t.length > 1);
    show(logged.root, names.length > 0);
    if (names.length) drawChart(logged, state, names, names.find((name) => /loss/i.test(name)) ?? names[0]);
    show(rates.root, rated.length > 0);
    if (rated.length) drawChart(rates, state, rated, rated[0]);
    table.update(state, picked);
    log.update(state, picked);
    if (picked !== null || hovered !== null) focus();
  }
  function drawChart(chart, state, names, standard) {
    if (charts.hidden) return;
    chart.draw(state, names.includes(chart.picked) ? chart.picked : standard);
    chart.tabs(names, schedule);
    chart.fit();
  }
  function schedule() {
    frame ||= requestAnimationFrame(draw);
  }
  function restyle() {
    theme = readTheme(root);
    for (const chart of [logged, rates]) chart.redraw();
  }
  const themes = new MutationObserver(restyle);
  themes.observe(document.body, { attributes: true });
  const sizes = new ResizeObserver(() => { restyle(); logged.fit(); rates.fit(); });
  sizes.observe(root);
  store.views.add(schedule);
  restyle();
  schedule();
  signal.addEventListener("abort", () => {
    store.views.delete(schedule);
    themes.disconnect();
    sizes.disconnect();
    cancelAnimationFrame(frame);
    for (const chart of [logged, rates]) chart.destroy();
    root.remove();
  });
}

export { duration, metric, multiple, number, percent, rate, size };

export default () => {
  let store = null;
  return {
    initialize({ model }) {
      const life = new AbortController();
      store = makeStore(model, life.signal);
      return () => life.abort();
    },
    render({ el }) {
      const life = new AbortController();
      makeView(store, el, life.signal);
      return () => life.abort();
    },
  };
};
