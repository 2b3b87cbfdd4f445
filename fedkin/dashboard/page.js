// The page: asks every two seconds what has changed, and redraws only that. All text goes in as text, never as HTML.
"use strict";

const EVERY = 2000, MOST = 24;
const $ = (id) => document.getElementById(id);
const params = new URLSearchParams(location.hash.slice(1));
const chosen = new Set(params.getAll("run"));
let runs = [], tag = "", ahead = 0, focus = params.get("focus"), drawn = {}, fresh = !chosen.size;
let sortRuns = { by: "last round", up: false }, sortPeople = { by: null, up: false };
const figures = {}, picked = {};

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const percent = (x) => (x === null || x === undefined ? "–" : (100 * x).toFixed(2));
const orDash = (x) => (x === null || x === undefined ? "–" : String(x));
const megabytes = (x) => (x / 1e6).toFixed(x < 1e7 ? 2 : 0) + " MB";
function duration(s) {
  if (s < 60) return `${Math.max(0, Math.floor(s))} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  return s < 172800 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : `${Math.floor(s / 86400)} days`;
}
const since = (run) => duration((Date.now() + ahead) / 1000 - run.changed).replace(/(\S+ \S+) .*/, "$1") + " ago";

// A table that is sorted by the column whose head is pressed. Columns: name, value to sort by, cell, kind.
function table(node, columns, rows, sort, attributes, again) {
  const column = columns.find((c) => c.name === sort.by);
  const sorted = [...rows];
  if (column) {
    const key = (row) => column.value(row) ?? (typeof column.value(rows.find((r) => column.value(r) != null) ?? row) === "number" ? -Infinity : "");
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
    sorted.sort((a, b) => (sort.up ? 1 : -1) * order(key(a), key(b)));
  }
  const head = columns.map((c) => {
    const press = () => { Object.assign(sort, { by: c.name, up: sort.by === c.name ? !sort.up : !c.kind?.startsWith("number") }); again(); };
    const way = sort.by === c.name ? (sort.up ? "ascending" : "descending") : null;
    return el("th", { class: c.kind, "aria-sort": way, scope: "col" }, c.name ? el("button", { type: "button", onclick: press }, c.name) : "");
  });
  const body = sorted.map((row) => el("tr", attributes(row), ...columns.map((c) => el("td", { class: c.kind }, c.cell(row)))));
  node.replaceChildren(el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

const runColumns = [
  { name: "", value: () => "", cell: (r) => Object.assign(el("input", { type: "checkbox", "aria-label": `choose ${r.id}` }), { checked: chosen.has(r.id) }) },
  { name: "run", kind: "long", value: (r) => r.id, cell: (r) => (r.wrong ? el("span", {}, r.id, el("span", { class: "why" }, r.wrong)) : r.id) },
  { name: "state", value: (r) => r.state, cell: (r) => el("span", { class: `state ${r.state}` }, r.state) },
  { name: "method", value: (r) => r.method, cell: (r) => orDash(r.method) },
  { name: "data", value: (r) => r.data, cell: (r) => orDash(r.data) },
  { name: "clients", kind: "number spare", value: (r) => r.clients, cell: (r) => orDash(r.clients) },
  { name: "seed", kind: "number", value: (r) => r.seed, cell: (r) => orDash(r.seed) },
  { name: "round", kind: "number", value: (r) => r.round, cell: (r) => (r.rounds ? el("span", {}, `${r.round} / ${r.rounds}`, el("progress", { value: r.round, max: r.rounds })) : "–") },
  { name: "accuracy (%)", kind: "number", value: (r) => r.accuracy, cell: (r) => percent(r.accuracy) },
  { name: "last round", kind: "number", value: (r) => r.changed, cell: (r) => el("span", { "data-changed": r.changed }, since(r)) },
];

function listRuns() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (r) => [r.id, r.state, r.method, r.data, `seed ${r.seed}`, r.real ? "real federation" : "simulation"].join(" ").toLowerCase();
  const shown = runs.filter((r) => words.every((word) => text(r).includes(word)));
  const attributes = (r) => ({ class: chosen.has(r.id) ? "chosen" : null, "data-run": r.id, onclick: () => choose(r.id) });
  table($("runs"), runColumns, shown, sortRuns, attributes, listRuns);
  $("empty").hidden = shown.length > 0;
  $("empty").textContent = runs.length ? "No run is like that." : "There are no runs under this folder yet: they appear as they start.";
  const states = {};
  for (const r of runs) states[r.state] = (states[r.state] ?? 0) + 1;
  $("counts").textContent = Object.entries(states).map(([state, count]) => `${count} ${state}`).join(", ");
}

function choose(id) {
  if (chosen.has(id)) chosen.delete(id);
  else if (chosen.size < MOST) { chosen.add(id); focus = id; }
  if (!chosen.has(focus)) focus = [...chosen].at(-1) ?? null;
  remember();
  listRuns();
  look();
}

function remember() {
  const kept = new URLSearchParams([...[...chosen].map((id) => ["run", id]), ...(focus ? [["focus", focus]] : [])]);
  history.replaceState(null, "", "#" + kept);
}

// Charts in the page's own colours; a user's place on a slider is kept when rounds are added.
function themed(layout) {
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim(), none = "rgba(0,0,0,0)";
  const base = layout.template?.layout ?? {};
  const axis = (a) => ({ ...a, linecolor: ink, tickcolor: ink });
  const own = { ...base, font: { ...base.font, color: ink, family: "system-ui, sans-serif" }, paper_bgcolor: none, plot_bgcolor: none, xaxis: axis(base.xaxis), yaxis: axis(base.yaxis) };
  const legend = { orientation: "h", x: 0, y: -0.2, yanchor: "top", ...layout.legend };
  return { ...layout, legend, uirevision: "same", margin: { ...layout.margin, t: layout.annotations?.length ? 40 : 16 }, template: { ...layout.template, layout: own } };
}

function draw(id, figure) {
  const part = $(id + "-part"), node = $(id);
  const there = Boolean(figure?.data);
  (part ?? node).hidden = !there;
  figures[id] = there ? figure : null;
  if (!there) return;
  const data = [...figure.data], layout = themed(figure.layout), slider = layout.sliders?.[0];
  const step = slider ? slider.steps.findIndex((s) => s.label === picked[id]) : -1;
  if (step >= 0) {
    layout.sliders = [{ ...slider, active: step }];
    const [{ z }, traces] = slider.steps[step].args;
    traces.forEach((trace, k) => { data[trace] = { ...data[trace], z: z[k] }; });
  }
  // The place has the height and the chart fills it: a chart with its own height loses it when a window changes.
  node.style.height = `${layout.height ?? 420}px`;
  delete layout.height;
  Plotly.react(node, data, layout, { responsive: true, displayModeBar: false });
  if (!node.dataset.heard) {
    node.dataset.heard = "yes";
    node.on("plotly_sliderchange", (event) => {
      const last = event.slider.steps.length - 1;
      picked[id] = event.slider.active === last ? null : event.step.label;
    });
  }
}

function say(id, lines) {
  $(id).hidden = !lines.length;
  $(id).replaceChildren(...lines.map((line) => el("li", {}, [line].flat().join(", "))));
}

async function ask(path, query) {
  const answer = await fetch(path + "?" + new URLSearchParams(query), { cache: "no-store" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

// Ask for what is chosen, if it is not what is drawn.
async function look() {
  const known = new Map(runs.map((r) => [r.id, r]));
  const ids = [...chosen].filter((id) => known.has(id));
  if (!known.has(focus)) focus = ids.at(-1) ?? null;
  $("compare").hidden = $("details").hidden = !ids.length;
  $("focus").replaceChildren(...ids.map((id) => Object.assign(el("option", { value: id }, id), { selected: id === focus })));
  const state = (id) => `${id} ${known.get(id).version}`;
  const wanted = { compare: [...ids.map(state), $("together").checked].join("|"), details: focus ? `${state(focus)} ${known.get(focus).state}` : "" };
  const compare = ids.length && wanted.compare !== drawn.compare, details = focus && wanted.details !== drawn.details;
  drawn = wanted;
  try {
    if (compare) {
      const together = $("together").checked ? [["together", "1"]] : [];
      const found = await ask("api/compare", [...ids.map((id) => ["run", id]), ...together]);
      if (drawn.compare === wanted.compare) {
        for (const name of ["curves", "time", "clients", "costs"]) draw(name, found[name]);
        say("unread", Object.entries(found.wrong).map(([id, why]) => `${id}: ${why}`));
      }
    }
    if (details) {
      const found = await ask("api/run", [["run", focus]]);
      if (drawn.details === wanted.details) show(known.get(found.id), found);
    }
  } catch (error) {
    drawn = {};
    say("unread", [String(error.message)]);
  }
}

function show(run, found) {
  const facts = [["state", run.state], ["round", `${found.round ?? 0} of ${orDash(run.rounds)}`], ["accuracy", percent(found.accuracy) + " %"]];
  if (found.clients) {
    if (found.best) facts.push(["best round (not a fair headline)", `${percent(found.best[1])} % in round ${found.best[0]}`]);
    facts.push(["sent by clients", megabytes(found.up)], ["sent by the server", megabytes(found.down)], ["time", duration(found.seconds)]);
    if (found.judged) facts.push(["accuracy is that of the", found.judged]);
  }
  $("facts").replaceChildren(...facts.map(([name, value]) => el("div", { class: name.startsWith("accuracy is") ? "broad" : null }, el("dt", {}, name), el("dd", {}, value))));
  say("wrong", found.wrong);
  $("resume").hidden = !["idle", "stopped"].includes(run.state);
  const newest = found.events?.[0];
  const why = newest?.event === "stopped" ? `Stopped (${newest.why}).` : "No round has ended for long and there is no result. If it was stopped:";
  $("resume").replaceChildren(`${why} It goes on with: `, el("code", {}, found.resume));
  for (const name of ["kin", "layers", "timeline"]) draw(name, found[name]);
  $("no-kin").hidden = Boolean(found.kin) || !found.clients;
  people(found.clients ?? []);
  say("groups", found.groups ?? []);
  $("groups-part").hidden = !found.groups?.length;
  const events = found.events ?? [];
  $("events-part").hidden = !events.length;
  const column = (name, kind) => ({ name, kind, value: (e) => e[name], cell: (e) => e[name] });
  table($("events"), [column("time"), column("client"), column("event"), column("why", "long")], events, {}, () => ({}), () => {});
  $("config").textContent = JSON.stringify(found.config ?? null, null, 1);
}

function people(rows) {
  $("people").hidden = !rows.length;
  const number = (name, key, cell = orDash) => ({ name, kind: "number", value: (c) => c[key], cell: (c) => cell(c[key]) });
  const columns = [{ name: "client", kind: "long", value: (c) => c.client, cell: (c) => c.client }, number("accuracy (%)", "accuracy", percent),
    number("training samples", "train"), number("test samples", "test"), number("rounds", "rounds")];
  table($("people-table"), columns, rows, sortPeople, () => ({}), () => people(rows));
}

async function poll() {
  try {
    const answer = await fetch("api/runs", { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
    if (answer.ok) {
      const body = await answer.json();
      tag = answer.headers.get("etag");
      // Ages are by the server's clock, which may not be this one's.
      if (answer.headers.get("date")) ahead = Date.parse(answer.headers.get("date")) - Date.now();
      runs = body.runs;
      $("folder").textContent = body.folder;
      if (fresh && runs.length) { fresh = false; focus = (runs.find((r) => !r.wrong) ?? runs[0]).id; chosen.add(focus); }
      listRuns();
      await look();
    } else if (answer.status !== 304) throw new Error(answer.status);
    $("link").textContent = "● live";
    $("link").className = "";
  } catch {
    $("link").textContent = "● no answer from the server";
    $("link").className = "lost";
  }
  setTimeout(poll, EVERY);
}

$("search").addEventListener("input", listRuns);
$("none").addEventListener("click", () => { chosen.clear(); focus = null; remember(); listRuns(); look(); });
$("together").addEventListener("change", look);
$("focus").addEventListener("change", (event) => { focus = event.target.value; remember(); look(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => Object.entries(figures).forEach(([id, figure]) => draw(id, figure)));
setInterval(() => document.querySelectorAll("[data-changed]").forEach((cell) => { cell.textContent = since({ changed: Number(cell.dataset.changed) }); }), 1000);
poll();
