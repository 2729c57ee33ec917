// The data, words and numbers. Everything drawn is text: no name ever becomes markup.
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.names.length, compared = data.compared;
document.querySelector("main").hidden = false; // it is empty where no script runs
const along = data.moved && { urls: data.urls, ...Object.fromEntries(["norm", "step", "drift"].map((key, k) => [key, Object.fromEntries(Object.entries(data.moved).map(([i, row]) => [i, row[k]]))])) };
const UNWELL = "nan"; // of what has a value that is not finite
for (const [i, norm] of Object.entries(along?.norm || {})) { // of what was zero before there is no share: it stayed so, or grew from zero
  for (const key of ["step", "drift"]) along[key][i] = along[key][i].map((x, k) => { const before = norm[key === "step" ? k : 0], now = norm[k + 1], both = [before, now]; return both.includes(null) ? x : both.includes(UNWELL) ? UNWELL : before ? x : now ? Infinity : 0; });
}
const alone = !compared && !along; // the page is about one checkpoint
const comparing = compared?.mode === "comparison", converted = compared?.mode === "conversion";
const $ = (id) => document.getElementById(id);
// Text in which everything can be seen, as in messages.printable: a name could turn what follows it round, or look like another.
const HIDDEN = /(?! )[\p{C}\p{Z}\u115f\u1160\u3164\uffa0\u2800\u034f\ufe00-\ufe0f\u{e0100}-\u{e01ef}]/gu;
const escaped = (c) => { const n = c.codePointAt(0), hex = n.toString(16); return n < 256 ? `\\x${hex.padStart(2, "0")}` : n < 65536 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`; };
const visible = (text) => (typeof text === "string" ? text.replace(HIDDEN, escaped) : text);
const visible_lines = (text) => (typeof text === "string" ? text.split("\n").map(visible).join("\n") : text); // of a title
const make = (tag, props = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key in node && key !== "role") node[key] = visible_lines(value); else node.setAttribute(key, visible_lines(value));
  }
  node.append(...children.map(visible));
  return node;
};
const svg = (tag, props, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, visible(value));
  node.append(...children.map(visible));
  return node;
};
const put = (lists, key, item) => { const list = lists.get(key); if (list) list.push(item); else lists.set(key, [item]); };
const largest = (list) => list.reduce((a, b) => Math.max(a, b), 0); // of any number of them
const button = (text, onclick, props = {}) => make("button", { type: "button", onclick, ...props }, text);

const DEEP = 64; // words of a name; what is deeper is one word
const split = (name) => {
  const words = name.split(data.separator);
  return words.length > DEEP ? [...words.slice(0, DEEP - 1), words.slice(DEEP - 1).join(data.separator)] : words;
};
// A name that breaks between its words, if it must.
const breakable = (name) => split(name).flatMap((word, k) => (k ? [data.separator, make("wbr"), visible(word)] : [visible(word)]));
const told_name = (i) => data.names[i].trim() ? data.names[i] : data.names[i] ? `"${data.names[i]}"` : "(empty)";

const bytes = (n) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 1000 && i < 4) { n /= 1000; i++; }
  return `${i ? n.toFixed(1) : n} ${units[i]}`;
};
const count = (n) => Number(n).toLocaleString("en");
const s = (n) => (n === 1 ? "" : "s");
const many = (n, noun) => `${count(n)} ${noun}${s(n)}`;
const brief = (n) => (n >= 1e12 ? `${(n / 1e12).toFixed(1)} T` : n >= 1e9 ? `${(n / 1e9).toFixed(1)} B` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : n >= 1e4 ? `${(n / 1e3).toFixed(0)} k` : count(n));
const number = (n) => (n === null || n === undefined ? "–" : typeof n !== "number" || (Number.isInteger(n) && Math.abs(n) < 1e9) ? String(n)
  : Math.abs(n) < 1e-3 || Math.abs(n) >= 1e9 ? n.toExponential(2) : String(Number(n.toPrecision(4))));
const percent = (x) => (x >= 1 ? "100 %" : x > 0.9995 ? "> 99.9 %" : x >= 0.0995 && x < 0.995 ? `${(100 * x).toFixed(0)} %` : x >= 0.0005 ? `${(100 * x).toFixed(1)} %` : x > 0 ? "< 0.1 %" : "0 %");
const shares = (sizes) => { // in tenths of a percent that add up to 100 %, as text
  const total = sizes.reduce((a, b) => a + b, 0) || 1, exact = sizes.map((n) => (1000 * n) / total), tenths = exact.map(Math.floor);
  const rest = Math.round(1000 - tenths.reduce((a, b) => a + b, 0)), order = exact.map((_, k) => k).sort((a, b) => exact[b] - tenths[b] - exact[a] + tenths[a]);
  for (const k of order.slice(0, rest)) tenths[k]++;
  return sizes.map((n, k) => (n && !tenths[k] ? "< 0.1 %" : tenths[k] === 1000 && n < total ? "> 99.9 %" : `${tenths[k] === 1000 ? 100 : (tenths[k] / 10).toFixed(1)} %`));
};
const change_text = (x) => (x === null ? "" : x === UNWELL ? "NaN or Inf" : x === Infinity ? "from zero" : x >= 1e7 ? "> 1,000,000,000 %" : x >= 0.9995 ? `${count(Number((100 * x).toPrecision(3)))} %` : x >= 0.0005 || x === 0 ? percent(x) : `${number(Number((100 * x).toPrecision(2)))} %`);
const shape = (dims) => dims.join(" × ") || "scalar";
const shapes = data.shapes.map(shape), roles = data.roles.map((r) => r || "weight");
const value = (column, i) => (data.values ? data[column][i] : null);
const stat = (column, i) => value(column, i) ?? (data.values && data.nan[i] ? "nan" : null); // without a finite value there is none
const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

const LINK = { className: "link" };
const STATS = ["min", "max", "mean", "std", "zeros", "nan", "inf"];
// --- what was found, and what changed ---
const checks = data.checks || {}; // severity, meaning and limit
const SAME_NAME = ["equal", "values", "dtype", "shape"]; // of a tensor that both have
const apart = comparing && rows > 0 && compared.rows.every((row) => !SAME_NAME.includes(row[2])) && compared.rows.some((row) => row[2] !== "renamed"); // so that nothing can be compared
const hints = apart ? data.notes.filter(([kind]) => kind === "hint") : []; // what to do about it
const NEW = apart ? " in B" : comparing ? " new in B" : converted ? " new in the result" : "", KNOWN = comparing ? " also in A" : " also in the source", GONE = comparing ? "only in A" : "only in the source";
const findings = (() => { // of this page, then those that only the first side has: check, row or name, text, index, whether it is new
  const row = new Map(data.names.map((name, i) => [name, i])), uses = new Map(), key = (f) => `${f[0]} ${f[1]} ${f[0] === "constant" ? f[2] : ""}`; // another constant is another finding
  if (converted) compared.rows.forEach(([, sources], i) => { for (const [name] of sources) put(uses, name, i); });
  const at = (name) => row.get(name) ?? name, last = (f) => (along && f.severity !== "note" && !/[,;] (only|also) in /.test(f.text) ? ", only in the last checkpoint" : ""), now = (data.findings || []).map((f) => [f.check, at(f.tensor), f.text + last(f), f.index]);
  const before = (data.before || []).map((f) => (converted ? uses.get(f.tensor) || [f.tensor] : [at(f.tensor)]).map((i) => [f.check, i, f.text, f.index])); // of each, for all rows that its tensor went into
  const known = new Set(before.flat().map(key)), here = new Set(now.map(key)), gone = before.filter((places) => !places.some((f) => here.has(key(f)))).map(([first]) => first);
  const all = [...now.map((f) => [...f, !known.has(key(f))]), ...gone.map(([check, i, text, index]) => [check, i, `${text}, ${GONE}`, index, false])];
  return all.filter((f) => f[4] || checks[f[0]][0] !== "note"); // a note that is of the first side as well is no news
})();
const flags = new Map();
for (const finding of findings) put(flags, finding[1], finding);
const severe = (i) => (flags.get(i) || []).filter((f) => checks[f[0]][0] !== "note");
const STATUS = comparing
  ? { equal: data.values ? "equal" : "not read", values: "changed", dtype: "other dtype", shape: "other shape", only_a: "only in A", only_b: "only in B", renamed: "renamed" }
  : { equal: data.values ? "as converted" : "not read", values: "differs", dtype: "other dtype", shape: "other shape", only_b: "no source", renamed: "renamed" };
const kind_of_change = (i) => (compared ? compared.rows[i][2] : "");
const status = (i) => STATUS[kind_of_change(i)] || "";
const changed = (i) => !["", "equal", "renamed"].includes(kind_of_change(i));
const measure = (name, i) => (compared && compared.rows[i][3] ? compared.rows[i][3][name] : null);
const unpaired = (i) => measure("unpaired", i) > 0; // a value is NaN or infinite on one side only: nothing else is measured
const here = (i) => !comparing || kind_of_change(i) !== "only_a"; // in the checkpoint that the page is about
// What is compared cannot be compared at all, has become NaN, or has changed by so much: the first are the worst.
const rank = (i) => {
  const kind = kind_of_change(i);
  if (unpaired(i)) return 1e300;
  const change = measure("change", i) ?? (measure("max_abs", i) > 0 ? 1e100 : null);
  return change !== null ? change : { shape: -1, dtype: -2, only_b: -3, only_a: -4, values: 1e200, renamed: -5 }[kind] ?? -6;
};
const STATE = data.kinds.at(-1);
const is_beside = (i) => Boolean(data.roles[data.role[i]]); // a buffer, or state of the optimizer
// Names that differ only in numbers as one: [layer_{0..11}/kernel, rows]
const fold = (list) => {
  const groups = new Map();
  for (const i of list) put(groups, data.names[i].replace(/\d+/g, "#"), i);
  return [...groups.values()].map((alike) => {
    const numbers = alike.map((i) => data.names[i].match(/\d+/g) || []);
    let k = 0;
    const text = data.names[alike[0]].replace(/\d+/g, () => {
      const all = [...new Set(numbers.map((n) => Number(n[k])))].sort((a, b) => a - b), [low, next] = all, high = all.at(-1), own = numbers[0][k++];
      return all.length < 2 ? own : high - low === all.length - 1 ? `{${low}..${high}}` : all.length < 7 ? `{${all.join(",")}}` : `{${low},${next}..${high}}`;
    });
    return [text, alike];
  });
};
const layer_of = (i) => data.stacks[data.stack[i]].replace("*", data.layer[i]); // of what is in no stack, its module
const stack_name = (stack) => (data.stacks[stack] === "*" ? "the top level" : data.stacks[stack]); // whose layers have numbers alone for names
const origin = (i) => (compared ? compared.rows[i][1].map((s) => s[0]).join(", ") : "");

// --- the tree of scopes ---
// Parameters are those of weights: slots of an optimizer would hide them. (If there are only slots, they count.)
// Of tied tensors the first one counts, as in the totals.
const twins = new Set(data.ties.flatMap((group) => group.slice(1))), once = (column) => column.map((n, i) => (twins.has(data.names[i]) ? 0 : n));
const weights = once(data.count).map((n, i) => (is_beside(i) ? 0 : n));
const columns_of = { bytes: once(data.bytes), count: weights.some(Boolean) ? weights : once(data.count) };
const scope = (name, full, up) => ({ name, full, up, bytes: 0, count: 0, tensors: 0, kinds: { count: new Map(), bytes: new Map() }, kids: new Map(), leaf: -1, bad: 0 });
const tree = scope("", "", null);
for (let i = 0; i < rows; i++) {
  const add = (node) => {
    node.tensors++;
    node.bad += severe(i).length ? 1 : 0;
    if (!here(i)) return;
    node.bytes += columns_of.bytes[i];
    node.count += columns_of.count[i];
    for (const [unit, column] of Object.entries(columns_of)) node.kinds[unit].set(data.kind[i], (node.kinds[unit].get(data.kind[i]) || 0) + column[i]);
  };
  let at = tree, full = "";
  const words = split(data.names[i]);
  add(tree);
  words.forEach((word, k) => {
    full += word + (k < words.length - 1 ? data.separator : "");
    let next = at.kids.get(word);
    if (!next) at.kids.set(word, (next = scope(word, full, at)));
    if (k < words.length - 1) next.full = full; else next.leaf = i;
    add(next);
    at = next;
  });
}
// Layers that are listed as 0, 1, 10, 11, 2 are put in the order of their numbers, in the places that they have.
const in_order = (node) => {
  const kids = [...node.kids.values()], alike = new Map(), last = (n) => Number((n.name.match(/\d+/g) || [0]).pop());
  kids.forEach((kid, k) => { const key = kid.name.replace(/\d+/g, "#"); put(alike, key, k); });
  for (const places of alike.values()) {
    if (places.length < 2) continue;
    const sorted = places.map((k) => kids[k]).sort((a, b) => last(a) - last(b));
    places.forEach((k, j) => { kids[k] = sorted[j]; });
  }
  node.kids = new Map(kids.map((kid) => [kid.name, kid]));
  for (const kid of kids) in_order(kid);
};
in_order(tree);
// A scope with nothing but one scope is shown as one: encoder.layer
const joined = (node) => {
  let name = node.name, at = node;
  while (at.leaf < 0 && at.kids.size === 1) { // and a scope with nothing but one tensor as that tensor
    const [only] = at.kids.values();
    name += data.separator + only.name;
    at = only;
  }
  return { node: at, name };
};

// --- state, and the address that keeps it ---
const state = { q: "", sort: "", down: false, show: "all", scope: "", view: "tree", unit: "count", depth: "", moves: "step", by: "tensor", kind: -1 };
