// Live charts, the live tail, the live log, and questions before a change. All other pages work without it.
// Text of strangers goes into the page by textContent only.
"use strict";

const POINTS_MAX = 300;
const ROWS_MAX = 500;

function shownNumber(name, value) {
  if (name.endsWith("_busy")) return (100 * value).toFixed(1) + " %";
  if (name.startsWith("bytes")) {
    const units = ["B", "KiB", "MiB", "GiB"];
    let unit = 0;
    while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
    return value.toFixed(unit ? 1 : 0) + " " + units[unit] + "/s";
  }
  return value.toLocaleString("en", { maximumFractionDigits: 0 });
}

function draw(figure, name, points) {
  const values = points.map((point) => point.v[name]);
  const highest = name.endsWith("_busy") ? 1 : Math.max(1, ...values) * 1.1;
  const first = points[0].t;
  const span = Math.max(1, points[points.length - 1].t - first);
  const line = points.map((point, at) =>
    (300 * (point.t - first) / span).toFixed(1) + "," + (80 - 78 * values[at] / highest).toFixed(1));
  figure.querySelector("polyline").setAttribute("points", line.join(" "));
  const text = shownNumber(name, values[values.length - 1]);
  figure.querySelector("output").textContent = text;
  const svg = figure.querySelector("svg");
  svg.setAttribute("aria-label",
    figure.querySelector("figcaption").firstChild.textContent.trim() + " " + text + "; highest " +
    shownNumber(name, Math.max(...values)) + " in the last minutes");
}

function liveCharts(box) {
  const state = document.getElementById("live");
  let points = [];
  const source = new EventSource(box.dataset.events);
  source.addEventListener("points", (event) => {
    const added = JSON.parse(event.data);
    const last = points.length ? points[points.length - 1].n : 0;
    // After a restart of the console the numbers begin at 1 again.
    if (added.length && added[added.length - 1].n < last) points = [];
    // After a lost connection all points come again.
    const newer = points.length ? added.filter((point) => point.n > last) : added;
    points = points.concat(newer).slice(-POINTS_MAX);
    if (!points.length) return;
    for (const figure of box.querySelectorAll("figure")) draw(figure, figure.dataset.series, points);
    if (state.dataset.state !== "live") { state.dataset.state = "live"; state.textContent = "Live, the last five minutes."; }
  });
  source.addEventListener("ended", (event) => {
    state.dataset.state = "lost";
    state.textContent = "Ended: " + JSON.parse(event.data);
    source.close();
  });
  source.addEventListener("error", () => {
    state.dataset.state = "lost";
    state.textContent = source.readyState === EventSource.CLOSED
      ? "The console has ended this session: load the page again." : "Connecting again.";
  });
  addEventListener("pagehide", () => source.close());
}

function cell(row, text, className) {
  const found = row.insertCell();
  found.textContent = text;
  if (className) found.className = className;
}

function liveTail(table) {
  const state = document.getElementById("tail-state");
  const pause = document.getElementById("pause");
  const body = table.tBodies[0];
  let isPaused = false;
  let held = 0;
  state.textContent = "Waiting for records.";
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(isPaused));
    if (!isPaused && held) { state.textContent = held + " records came during the pause."; held = 0; }
  });
  const source = new EventSource(table.dataset.events);
  source.addEventListener("open", () => { state.textContent = "Live, the newest record first."; });
  source.addEventListener("record", (event) => {
    if (isPaused) { held += 1; return; }
    const record = JSON.parse(event.data);
    const row = body.insertRow(0);
    cell(row, record.time_ms < 0 ? "–" : new Date(record.time_ms).toISOString());
    cell(row, String(record.partition));
    cell(row, String(record.offset), "number");
    cell(row, record.key_form === "null" ? "null" : record.key);
    cell(row, record.value_form === "null" ? "null" : record.value + (record.is_cut ? " …" : ""));
    while (body.rows.length > ROWS_MAX) body.deleteRow(-1);
  });
  source.addEventListener("skipped", (event) => {
    state.textContent = JSON.parse(event.data) + " records were skipped, because more came than a page can show.";
  });
  source.addEventListener("ended", (event) => {
    state.textContent = "Ended: " + JSON.parse(event.data);
    source.close();
  });
  source.addEventListener("error", () => { state.textContent = "Connecting again."; });
  addEventListener("pagehide", () => source.close());
}

function liveLog(table) {
  const state = document.getElementById("log-state");
  const body = table.tBodies[0];
  const source = new EventSource(table.dataset.events);
  source.addEventListener("open", () => { state.textContent = "Live, the newest line first."; });
  source.addEventListener("line", (event) => {
    const line = JSON.parse(event.data);
    const row = body.insertRow(0);
    if (line.level === "ERROR" || line.level === "CRITICAL") row.className = "bad";
    for (const text of [line.time, line.level, line.process, line.text]) cell(row, text);
    while (body.rows.length > ROWS_MAX) body.deleteRow(-1);
  });
  source.addEventListener("ended", (event) => {
    state.textContent = "Ended: " + JSON.parse(event.data);
    source.close();
  });
  source.addEventListener("error", () => { state.textContent = "Connecting again."; });
  addEventListener("pagehide", () => source.close());
}

for (const form of document.querySelectorAll("form[data-confirm]")) {
  form.addEventListener("submit", (event) => {
    if (!confirm(form.dataset.confirm)) event.preventDefault();
  });
}
const charts = document.querySelector(".charts[data-events]");
if (charts) liveCharts(charts);
const tail = document.getElementById("tail");
if (tail) liveTail(tail);
const log = document.getElementById("log");
if (log) liveLog(log);
