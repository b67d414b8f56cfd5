// SPDX-License-Identifier: Apache-2.0
"use strict";

const ASK_MS = 2000, HISTORY_MAX = 720;
const $ = id => document.getElementById(id);
const state = $("state"), body = document.querySelector("#targets tbody"), relative = $("relative");
const canvas = $("map"), context = canvas.getContext("2d"), under = $("under");

let snapshot = null;      // the last answer of /api/snapshot
let before = null;        // and the one before it
let chosen = null;        // name of the target whose time line is shown
let moments = [];         // its time line
let cursor = null;        // index of the moment pointed at
let answered_ms = 0;      // when the daemon answered last
let isShown = false;      // whether the last answer is shown in full

// ---- words

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
function bytes(n) {
  let unit = 0;
  while (n >= 1023.95 && unit < UNITS.length - 1) { n /= 1024; unit++; }
  return (unit === 0 || n >= 99.95 ? n.toFixed(0) : n.toFixed(1)) + "\u00a0" + UNITS[unit];
}
function span(ms) {
  for (const [size, name] of [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]])
    if (ms >= size) return +(ms / size).toFixed(1) + " " + name;
  return ms + " ms";
}
const percent = share => (share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0) + "\u00a0%";
const clock = ms => new Date(ms).toLocaleTimeString();
function binName(bounds, at) {
  if (bounds.length === 0) return "any age";
  if (at === bounds.length) return span(bounds[at - 1]) + " and older";
  return at === 0 ? "under " + span(bounds[0]) : span(bounds[at - 1]) + " – " + span(bounds[at]);
}

// ---- colours: warm is what was used just now, cold what was not for long

const STOPS = [[232, 89, 12], [224, 168, 46], [74, 168, 150], [59, 111, 182], [88, 72, 160]];
function colour(at, count) {
  const x = count > 1 ? at / (count - 1) * (STOPS.length - 1) : 0;
  const low = Math.min(Math.floor(x), STOPS.length - 2), part = x - low;
  const mixed = STOPS[low].map((c, i) => Math.round(c + (STOPS[low + 1][i] - c) * part));
  return "rgb(" + mixed.join(",") + ")";
}
const theme = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- building elements; names of cgroups only ever become text

function element(kind, attributes, ...children) {
  const made = document.createElement(kind);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") made.className = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
// A name that its place may cut at the start: of a long one the end is what tells.
const whole = name => element("bdi", { dir: "ltr" }, name);
const mark = kind => element("i", { class: "mark " + kind, "aria-hidden": "true" });

function bins(target) {
  const all = [];
  for (const node of target.nodes)
    node.bins.forEach((bin, at) => {
      all[at] = all[at] || { upper_ms: bin.upper_ms, bytes: 0 };
      all[at].bytes += bin.anon_bytes + bin.file_bytes;
    });
  return all;
}
const boundsOf = target => bins(target).map(bin => bin.upper_ms).filter(ms => ms !== null);

// ---- the machine

function drawMachine() {
  const m = snapshot.machine, own = snapshot.own, budget = snapshot.budget;
  const used = m.total_bytes - m.available_bytes, swapped = m.swap_total_bytes - m.swap_free_bytes;
  const items = [
    ["Memory in use", bytes(used), "of " + bytes(m.total_bytes)],
    ["Swap in use", m.swap_total_bytes ? bytes(swapped) : "none", m.swap_total_bytes ? "of " + bytes(m.swap_total_bytes) : ""],
    ["Waiting for memory", m.psi ? m.psi.some.avg10_percent.toFixed(2) + " %" : "n/a", "of the last 10 s",
      m.psi && m.psi.full.avg10_percent >= 10],
    ["Kernel reclaims", m.is_under_reclaim ? "yes" : "no", "since the last look", m.is_under_reclaim],
    ["Daemon", own.cpu_percent.toFixed(2) + " % CPU", bytes(own.resident_bytes) + " of memory"],
    ["Looks", "every " + span(budget.actual_ms), budget.actual_ms > budget.tick_ms
      ? "asked for " + span(budget.tick_ms) + ": short of CPU budget" : "as asked for", budget.actual_ms > budget.tick_ms],
  ];
  $("machine").replaceChildren(...items.map(([name, value, note, isWarning]) =>
    element("div", {}, element("dt", {}, name),
      element("dd", { class: isWarning ? "warn" : "" }, value, element("small", {}, note)))));
}

// ---- cgroups and processes

function drawLegend() {
  const first = snapshot.targets[0];
  const bounds = first ? boundsOf(first) : [];
  const items = first ? bins(first).map((_, at, all) => {
    const box = element("i", { "aria-hidden": "true" });
    box.style.background = colour(at, all.length);
    return element("li", {}, box, binName(bounds, at));
  }) : [];
  $("legend").replaceChildren(...items);
}

function grown(target, field) {
  const old = before && before.targets.find(t => t.target === target.target && t.kind === target.kind);
  return old ? Math.max(0, target[field] - old[field]) : 0;
}

// A container below its pod goes by its own name. The sandbox that holds the pod's namespaces has none.
function containerName(target) {
  const isPod = t => t.pod === target.pod && t.namespace === target.namespace && !t.container_id && !t.container;
  const own = target.container || (target.container_id ? "(sandbox)" : "");
  if (own && target.pod && snapshot.targets.some(isPod)) return own;
  return [target.namespace, target.pod, own].filter(Boolean).join("/");
}

// A cgroup below one that is shown has that one's path left out.
function shortPath(target) {
  if (target.kind === "other") return "all others";
  let name = target.target;
  if (target.pod || target.container) name = containerName(target);
  else if (target.kind === "cgroup") {
    const above = snapshot.targets.map(t => t.target).filter(t => t !== "/" && name.startsWith(t + "/"));
    const longest = above.reduce((a, b) => b.length > a.length ? b : a, "");
    if (longest) name = name.slice(longest.length + 1);
  }
  return name;
}

function count(target, field, kind, label) {
  const cell = element("td", { class: "small" + (target[field] ? "" : " none"), "data-label": label });
  const more = grown(target, field);
  if (more > 0) cell.append(mark(kind), element("span", { class: "now" }, "+" + bytes(more) + " "));
  const isRehearsal = field === "rehearsed_bytes";
  cell.append(isRehearsal ? "(" + bytes(target[field]) + ")" : bytes(target[field]));
  if (isRehearsal) cell.title = "would have been moved out: this is a dry run";
  return cell;
}

// A bar as wide as a share of the largest, divided by age.
function agesBar(all, bounds, sum, share) {
  sum = sum || 1;
  const bar = element("div", { role: "img",
    "aria-label": all.map((bin, at) => percent(bin.bytes / sum) + " " + binName(bounds, at)).join(", ") || "ages not known" });
  bar.style.width = relative.checked ? "100%" : Math.max(0.3, share * 100) + "%";
  all.forEach((bin, at) => {
    const part = element("i", { title: binName(bounds, at) + ": " + bytes(bin.bytes) + ", " + percent(bin.bytes / sum) });
    part.style.width = bin.bytes / sum * 100 + "%";
    part.style.background = colour(at, all.length);
    bar.append(part);
  });
  return bar;
}

function row(target, largest) {
  const all = bins(target), bounds = boundsOf(target), sum = target.resident_bytes;
  const image = target.image ? "\nimage " + target.image : "";
  const name = element("button", { type: "button", title: target.target + image, "aria-label": target.target,
    "aria-pressed": String(target.target === chosen), class: "long" }, whole(shortPath(target)));
  const line = element("div", { class: "name" }, name), cell = element("td", {}, line);
  cell.style.paddingLeft = 0.5 + Math.min(target.depth, 8) * 0.9 + "rem";
  if (target.policy) line.append(element("span", { class: "tag",
    title: "the policy that acts on it" }, target.policy + (target.dry_run ? ", dry run" : "")));
  if (target.guest_hosts.length) line.append(element("span", { class: "tag",
    title: "KVM guests run in it: what they access is not seen, so what looks idle may be in use" }, "guests"));
  const bar = agesBar(all, bounds, sum, target.resident_bytes / largest);
  const made = element("tr", { "data-target": target.target, class: target.target === chosen ? "chosen" : "" },
    cell, element("td", { class: "ages" }, bar),
    element("td", { class: "resident" }, bytes(target.resident_bytes)),
    element("td", { class: "small", "data-label": "swap" }, bytes(target.swapped_bytes)),
    count(target, "refaulted_bytes", "back", "back"),
    count(target, target.dry_run ? "rehearsed_bytes" : "reclaimed_bytes", "out", "out"));
  if (target.kind !== "other") made.addEventListener("click", () => choose(target.target));
  else { name.disabled = true; made.style.cursor = "default"; }
  return made;
}

function drawTargets() {
  const focused = document.activeElement && document.activeElement.closest("tr");
  const name = focused && focused.dataset.target;
  const largest = Math.max(1, ...snapshot.targets.map(t => t.resident_bytes));
  body.replaceChildren(...snapshot.targets.map(target => row(target, largest)));
  // Rows are made anew at every look: whoever goes by keyboard stays where they were.
  if (name) for (const made of body.rows) if (made.dataset.target === name) made.querySelector("button").focus();
  const notes = [];
  if (snapshot.targets_cut) notes.push(snapshot.targets_cut + " more are not shown by name.");
  if (snapshot.targets_truncated) notes.push("The machine has more cgroups or processes than are observed.");
  if (!snapshot.targets.length) notes.push("Nothing is observed: see cgroups and pids of the configuration.");
  $("cut").textContent = notes.join(" ");
}

body.addEventListener("keydown", event => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const here = event.target.closest("tr");
  if (!step || !here) return;
  const next = body.rows[[...body.rows].indexOf(here) + step];
  if (next) { next.querySelector("button").focus(); event.preventDefault(); }
});
relative.addEventListener("change", () => { if (snapshot) { drawTargets(); drawFiles(); } });

function choose(name) {
  chosen = name;
  moments = [];
  cursor = null;
  drawTargets();
  drawCurve();
  askTimeline();
}

// ---- the time line: age against time, shade by share of resident memory

const STRIP = 16, BOTTOM = 22, TOP = 4;
const leftOf = () => canvas.clientWidth < 500 ? 74 : 112;
// One column a moment; what is not observed yet leaves its place empty on the left.
function shownMoments() {
  if (!moments.length) return [];
  const bounds = moments[moments.length - 1].bounds_ms.join();
  return moments.filter(moment => moment.bounds_ms.join() === bounds);
}
const plotWidth = () => Math.max(1, canvas.clientWidth - leftOf() - 2);

function drawMap() {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const snap = x => Math.round(x * scale) / scale;
  const shown = shownMoments();
  $("map-title").textContent = chosen === null ? "Age over time" : "Age over time: " + chosen;
  if (!shown.length) { canvas.setAttribute("aria-label", "no time line yet"); return tell(); }
  const left = leftOf(), bottom = height - BOTTOM - 2 * STRIP, tall = bottom - TOP;
  const last = shown[shown.length - 1], count = last.ages_bytes.length, high = tall / count;
  const wide = plotWidth() / shown.length;
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let at = 0; at < count; at++) {
    const y = bottom - (at + 1) * high;
    context.fillStyle = theme("--raised");
    context.fillRect(left, y, plotWidth(), high - 1);
    context.fillStyle = theme("--quiet");
    context.fillText(width < 500 ? shortName(last.bounds_ms, at) : binName(last.bounds_ms, at), left - 8, y + high / 2);
    context.fillStyle = theme("--heat");
    shown.forEach((moment, column) => {
      const sum = moment.ages_bytes.reduce((a, b) => a + b, 0) || 1;
      // The eye tells faint shades apart better than strong ones.
      context.globalAlpha = Math.sqrt(moment.ages_bytes[at] / sum);
      // Whole pixels of the screen, or neighbours would mix along their borders.
      const x0 = snap(left + column * wide), x1 = snap(left + (column + 1) * wide);
      context.fillRect(x0, y, x1 - x0, high - 1);
    });
    context.globalAlpha = 1;
  }
  const most = field => Math.max(1, ...shown.map(moment => moment[field]));
  strip(shown, "refaulted_bytes", most("refaulted_bytes"), bottom + STRIP, theme("--back"), left, wide, true);
  strip(shown, "reclaimed_bytes", most("reclaimed_bytes"), bottom + STRIP + 1, theme("--out"), left, wide, false);
  context.fillStyle = theme("--quiet");
  const ticks = Math.min(shown.length, Math.max(2, Math.min(6, Math.floor(plotWidth() / 130))));
  for (let tick = 0; tick < ticks; tick++) {
    const at = Math.round(tick * (shown.length - 1) / Math.max(1, ticks - 1));
    context.textAlign = tick === 0 ? "left" : tick === ticks - 1 ? "right" : "center";
    const x = tick === ticks - 1 ? left + plotWidth() : left + at * wide;
    context.fillText(clock(shown[at].unix_ms), x, height - BOTTOM / 2 + 2);
  }
  if (cursor !== null && shown[cursor]) {
    context.strokeStyle = theme("--focus");
    context.lineWidth = 1.5;
    context.strokeRect(left + cursor * wide - 0.5, TOP, Math.max(wide, 2) + 1, height - BOTTOM - TOP);
  }
  canvas.setAttribute("aria-label", "Heat map of " + chosen + ": " + shown.length
    + " looks, ages from young at the bottom to old at the top. Arrow keys go from look to look.");
  tell();
}
function shortName(bounds, at) {
  if (bounds.length === 0) return "all";
  return at === bounds.length ? "≥ " + span(bounds[at - 1]) : "< " + span(bounds[at]);
}
function strip(shown, field, most, base, ink, left, wide, isUp) {
  context.fillStyle = ink;
  shown.forEach((moment, column) => {
    if (!moment[field]) return;
    const high = 4 + (STRIP - 6) * moment[field] / most;
    context.fillRect(left + column * wide, isUp ? base - high : base, Math.max(1.5, wide - 0.5), high);
  });
}

function tell() {
  const shown = shownMoments();
  if (!shown.length) { under.textContent = chosen === null ? "" : "No time line: only the largest are kept."; return; }
  const moment = shown[cursor === null ? shown.length - 1 : cursor];
  if (!moment) return;
  const sum = moment.ages_bytes.reduce((a, b) => a + b, 0);
  const parts = moment.ages_bytes.map((b, at) => binName(moment.bounds_ms, at) + " " + percent(sum ? b / sum : 0));
  let text = clock(moment.unix_ms) + ": " + bytes(sum) + " – " + parts.join(", ");
  if (moment.refaulted_bytes) text += "; came back " + bytes(moment.refaulted_bytes);
  if (moment.reclaimed_bytes) text += "; moved out " + bytes(moment.reclaimed_bytes);
  // Only who goes from look to look hears it, not everybody at every look.
  under.setAttribute("aria-live", cursor === null ? "off" : "polite");
  under.textContent = text;
}

canvas.addEventListener("pointermove", event => {
  const shown = shownMoments(), x = event.clientX - canvas.getBoundingClientRect().left - leftOf();
  const at = Math.floor(x / plotWidth() * shown.length);
  cursor = at >= 0 && at < shown.length ? at : null;
  drawMap();
});
canvas.addEventListener("pointerleave", () => { cursor = null; drawMap(); });
canvas.addEventListener("blur", () => { cursor = null; drawMap(); });
canvas.addEventListener("keydown", event => {
  const end = shownMoments().length - 1, here = cursor === null ? end : cursor;
  const to = { ArrowLeft: here - 1, ArrowRight: here + 1, PageUp: here - 20, PageDown: here + 20, Home: 0, End: end }[event.key];
  if (to === undefined || end < 0) return;
  cursor = Math.max(0, Math.min(end, to));
  event.preventDefault();
  drawMap();
});
window.addEventListener("resize", () => drawMap());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawMap());

// ---- what less memory would cost: waiting by memory, at most as a dashed line, and where it is now

function drawing(kind, attributes) {
  const made = document.createElementNS($("curve").namespaceURI, kind);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
function gainText(target) {
  const first = target && target.kernel_first;
  if (first) return " The kernel has the limit of its budget first: " + first.came_in_pages + " of " + first.until_pages + " pages have come in.";
  const change = target && target.budget_gain && target.budget_gain.faults_change;
  if (!change) return "";
  const share = value => (Math.abs(value) * 100).toFixed(0) + "\u00a0%";
  if (Math.abs(change.mean) <= change.half) return " Its budget changes faults by no more than " + share(Math.abs(change.mean) + change.half) + ".";
  return " Its budget " + (change.mean < 0 ? "saves " : "adds ") + share(change.mean) + " \u00b1 " + share(change.half) + " of faults.";
}
function drawCurve() {
  const target = snapshot && snapshot.targets.find(t => t.target === chosen);
  const points = target ? target.what_if : [];
  if (!points.length) { $("curve").replaceChildren(); $("curve-text").textContent = "What it would cost is not known yet." + gainText(target); return; }
  const wide = 600, tall = 120, full = points[points.length - 1].memory_bytes || 1;
  const highs = points.map(p => p.wait_high === null ? p.wait_ratio : p.wait_high);
  const most = Math.max(0.002, ...highs), least = points[0].memory_bytes;
  const x = bytes => 10 + (bytes - least) / Math.max(1, full - least) * (wide - 20);
  // Small shares are what decides: a root keeps them apart.
  const y = share => tall - 10 - Math.sqrt(share / most) * (tall - 20);
  const line = of => points.map(p => x(p.memory_bytes) + "," + y(of(p))).join(" ");
  const now = Math.min(full, Math.max(least, target.resident_bytes));
  const next = points.findIndex(p => p.memory_bytes >= now), to = points[next], from = points[Math.max(0, next - 1)];
  const part = to.memory_bytes > from.memory_bytes ? (now - from.memory_bytes) / (to.memory_bytes - from.memory_bytes) : 1;
  const here = from.wait_ratio + (to.wait_ratio - from.wait_ratio) * part;
  $("curve").replaceChildren(
    drawing("polyline", { points: line(p => p.wait_high === null ? p.wait_ratio : p.wait_high), class: "most" }),
    drawing("polyline", { points: line(p => p.wait_ratio), class: "likely" }),
    drawing("circle", { cx: x(now), cy: y(here), r: 5, class: "here" }));
  const share = value => (value * 100).toFixed(2) + "\u00a0%";
  $("curve-text").textContent = "Waiting by memory: " + points.map(p => bytes(p.memory_bytes) + " "
    + share(p.wait_ratio) + " (" + (p.wait_high === null ? "no bound" : "at most " + share(p.wait_high)) + ", "
    + p.faults_per_second.toFixed(1) + " faults/s)").join("; ") + ". It has " + bytes(target.resident_bytes) + " now." + gainText(target);
}

// ---- the largest files, of the machine

// Characters that are not seen, or reverse the text around them, could make a file look like another.
const visible = name => name.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, c => "\\u{" + c.codePointAt(0).toString(16) + "}");
function fileRow(file, largest) {
  const cell = (label, text) => element("td", { class: "small", "data-label": label }, text);
  // Null of shared memory, whose accesses are not seen.
  const ages = file.ages || [], bounds = ages.map(age => age.upper_ms).filter(ms => ms !== null);
  const bar = agesBar(ages, bounds, file.resident_bytes, file.resident_bytes / largest);
  const name = visible(file.file), cgroup = visible(file.cgroup || "");
  const sampled = file.sampled ? "\nages are those of one block in eight" : "";
  return element("tr", {}, element("td", { class: "long", title: name + sampled }, whole(name)),
    element("td", { class: "ages" }, bar),
    element("td", { class: "resident" }, bytes(file.resident_bytes)),
    cell("dirty", bytes(file.dirty_bytes)),
    cell("oldest", file.oldest_ms === null ? "?" : "≥ " + span(file.oldest_ms)),
    element("td", { class: "small", "data-label": "of", title: cgroup || "no cgroup, or a removed one" },
      element("span", { class: "long" }, whole(cgroup || "–"))));
}
function drawFiles() {
  const files = snapshot.files, shown = files ? files.largest : [];
  const largest = Math.max(1, ...shown.map(file => file.resident_bytes));
  document.querySelector("#files tbody").replaceChildren(...shown.map(file => fileRow(file, largest)));
  $("files").hidden = !files;
  $("files-text").textContent = files
    ? "The largest of " + files.count + " files with " + bytes(files.resident_bytes) + ", as of " + clock(files.unix_ms)
      + ", observed for " + span(files.observed_ms) + " then. Listed once a minute, at first more often."
    : "Not known: the page cache is not followed, or was not looked at yet. observe.files = true in the configuration follows it where the kernel allows that (see agewise doctor).";
}

// ---- asking

class NoAnswer extends Error {}
async function ask(path, unknown) {
  try {
    const answer = await fetch(path, { cache: "no-store" });
    if (answer.status === 404 && unknown) return unknown;
    if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
    return await answer.json();
  } catch (error) {
    throw new NoAnswer(error.message);
  }
}

async function askTimeline() {
  const name = chosen;
  if (name === null) return drawMap();
  const last = moments.length ? moments[moments.length - 1].sequence : 0;
  const answer = await ask("/api/timeline?target=" + encodeURIComponent(name) + "&since=" + last, { moments: [] });
  if (name !== chosen) return;
  // Another answer may have come since it was asked for.
  const newest = moments.length ? moments[moments.length - 1].sequence : 0;
  const newer = answer.moments.filter(moment => moment.sequence > newest);
  const dropped = Math.max(0, moments.length + newer.length - HISTORY_MAX);
  moments = moments.concat(newer).slice(-HISTORY_MAX);
  if (cursor !== null) cursor = Math.max(0, cursor - dropped);
  drawMap();
}

function greet() {
  state.classList.remove("trouble");
  state.setAttribute("aria-live", "off");
  state.textContent = "looked at " + clock(snapshot.unix_ms) + " · " + snapshot.targets.length
    + " shown · version " + snapshot.version;
}

// Whether it is the answer of a daemon that began anew: what grows has shrunk.
const isAnother = answer => snapshot
  && (answer.sequence < snapshot.sequence || answer.own.cpu_ms < snapshot.own.cpu_ms);

async function turn() {
  try {
    const answer = await ask("/api/snapshot");
    answered_ms = Date.now();
    const isNew = !snapshot || answer.sequence !== snapshot.sequence || answer.unix_ms !== snapshot.unix_ms;
    if (isNew || !isShown) {
      isShown = false;
      if (isAnother(answer)) { moments = []; before = null; }
      else if (isNew) before = snapshot;
      snapshot = answer;
      if (chosen === null && answer.targets.length) chosen = answer.targets[0].target;
      drawMachine();
      drawLegend();
      drawTargets();
      drawCurve();
      drawFiles();
      await askTimeline();
      isShown = true;
    }
    greet();
  } catch (error) {
    state.classList.add("trouble");
    state.setAttribute("aria-live", "polite");
    if (!(error instanceof NoAnswer)) state.textContent = "cannot show the answer: " + error.message;
    else state.textContent = answered_ms
      ? "no answer since " + clock(answered_ms) + "; asking again" : "no answer yet: " + error.message;
  }
  setTimeout(turn, ASK_MS);
}
turn();
