// --- the table: a tree of scopes, or a list that is searched and sorted; only the rows in sight exist ---
const narrow = matchMedia("(max-width: 700px)");
const titles = (i) => (flags.get(i) || []).map((f) => f[0]).join(", ");
const small = (x) => (x === null || x === undefined ? "" : number(x));
const of_pair = (name, i, text = small) => (unpaired(i) ? "nan" : text(measure(name, i)));
const collator = new Intl.Collator("en", { numeric: true });
const low_first = (x) => (x === null || x === undefined ? -Infinity : Number.isNaN(Number(x)) ? Infinity : Number(x));
const natural = [];
data.names.map((_, i) => i).sort((a, b) => collator.compare(data.names[a], data.names[b])).forEach((i, place) => { natural[i] = place; });
const columns = [
  { id: "name", title: "Name", text: (i) => data.names[i], key: (i) => natural[i], width: "minmax(160px, 4fr)", cls: "name" },
  ...(compared ? [
    ...(data.names.some((n, i) => origin(i) && origin(i) !== n) ? [{ id: "from", title: "From", text: (i) => (origin(i) === data.names[i] ? "" : origin(i)), key: origin, width: "minmax(120px, 2fr)", cls: "name wide" }] : []),
    { id: "status", title: "Values", text: status, key: (i) => (is_beside(i) && rank(i) > 0 && !unpaired(i) ? rank(i) / (1 + rank(i)) - 1 : rank(i)), down: true, // weights first
      width: "100px", cls: "" },
    ...(data.values && compared.rows.some((r) => r[3]) ? [
      { id: "change", title: "Change", text: (i) => (unpaired(i) ? "NaN or Inf" : change_text(measure("change", i))), key: rank, down: true, width: "84px", cls: "num" },
      { id: "abs", title: "max |d|", text: (i) => of_pair("max_abs", i), key: (i) => (unpaired(i) ? Infinity : low_first(measure("max_abs", i))), down: true, width: "84px", cls: "num" },
      { id: "cosine", title: "Cosine", text: (i) => of_pair("cosine", i), key: (i) => (unpaired(i) ? Infinity : measure("cosine", i) === null ? -Infinity : -measure("cosine", i)), down: true, width: "76px", cls: "num" }] : []),
  ] : along && data.values ? [
    { id: "last", title: "Last step", text: (i) => change_text(along.step[i]?.at(-1) ?? null), key: (i) => low_first(along.step[i]?.at(-1)), down: true, width: "84px", cls: "num" },
    { id: "drift", title: "From first", text: (i) => change_text(along.drift[i]?.at(-1) ?? null), key: (i) => low_first(along.drift[i]?.at(-1)), down: true, width: "84px", cls: "num" },
  ] : data.names.some((_, i) => flags.has(i)) ? [{ id: "flags", title: "Findings", text: titles, key: (i) => (flags.get(i) ? severe(i).length + 0.5 : 0), down: true, width: "minmax(80px, 1fr)", cls: "flags" }] : []),
  { id: "dtype", title: "Dtype", text: (i) => data.dtypes[data.dtype[i]], key: (i) => data.dtypes[data.dtype[i]], width: "76px", cls: "" },
  { id: "shape", title: "Shape", text: (i) => shapes[data.shape[i]], key: (i) => data.count[i], down: true, width: "minmax(128px, 1fr)", cls: "" },
  ...(compared ? [] : [{ id: "count", title: "Parameters", text: (i) => brief(data.count[i]), key: (i) => data.count[i], down: true, width: "92px", cls: "num wide" }]),
  { id: "size", title: "Size", text: (i) => bytes(data.bytes[i]), key: (i) => data.bytes[i], down: true, width: "76px", cls: "num" },
  ...(data.roles.some(Boolean) ? [{ id: "role", title: "Role", text: (i) => roles[data.role[i]], key: (i) => roles[data.role[i]], width: "64px", cls: "wide" }] : []),
  ...(data.values && !compared ? ["min", "max", "mean", "std"].map((m) => (
    { id: m, title: m, text: (i) => small(stat(m, i)), key: (i) => low_first(value(m, i)), down: true, width: "72px", cls: "num wide" })) : []),
  ...(data.values && !compared && !along ? [{ id: "zeros", title: "Zeros", text: (i) => (data.zeros[i] ? percent(data.zeros[i] / data.count[i]) : ""), key: (i) => data.zeros[i] / (data.count[i] || 1), down: true, width: "60px", cls: "num wide" }] : []),
];
const filters = {
  all: ["All", () => true], found: ["With findings", (i) => flags.has(i)], changed: [converted ? "Not as converted" : "Changed", changed], equal: [STATUS.equal, (i) => kind_of_change(i) === "equal"],
  only_a: [STATUS.only_a, (i) => kind_of_change(i) === "only_a"], renamed: ["Renamed", (i) => kind_of_change(i) === "renamed"], dtype: ["Other dtype", (i) => kind_of_change(i) === "dtype"], shape: ["Other shape", (i) => kind_of_change(i) === "shape"], only_b: [STATUS.only_b, (i) => kind_of_change(i) === "only_b"],
  weight: ["Weights", (i) => !data.roles[data.role[i]]], other: ["Buffers, slots and state", (i) => Boolean(data.roles[data.role[i]])],
  ...Object.fromEntries(Object.keys(checks).map((id) => [id, [id, (i) => (flags.get(i) || []).some((f) => f[0] === id)]])),
};
const read = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  state.q = given.get("q") || "";
  state.sort = columns.some((c) => c.id === given.get("sort")) ? given.get("sort") : "";
  state.down = given.get("down") === "1";
  state.show = Object.hasOwn(filters, given.get("show")) ? given.get("show") : "all";
  state.scope = given.get("scope") || "";
  state.view = given.get("view") || (compared ? "list" : "tree");
  state.unit = given.get("unit") === "bytes" ? "bytes" : "count";
  state.depth = given.get("depth") || "";
  state.by = Object.hasOwn(RANKINGS, given.get("by")) ? given.get("by") : "tensor";
  if (compared && !given.has("sort") && !given.has("view")) { state.sort = "status"; state.down = true; }
  return given.has("open") ? Number(given.get("open")) : -1;
};
const write = () => {
  const given = new URLSearchParams();
  for (const key of ["q", "sort", "scope"]) if (state[key]) given.set(key, state[key]);
  if (state.down) given.set("down", "1");
  if (state.show !== "all") given.set("show", state.show);
  if (state.view !== (compared ? "list" : "tree")) given.set("view", state.view);
  if (state.unit !== "count") given.set("unit", state.unit);
  if (state.by !== "tensor") given.set("by", state.by);
  try {
    history.replaceState(null, "", given.size ? `#${given}` : location.pathname + location.search);
  } catch { /* in a notebook's frame the address is not ours */ }
};

// --- which rows: a tensor is its number, a scope an object ---
const haystack = data.names.map((n, i) => `${n} ${origin(i)} ${data.dtypes[data.dtype[i]]} ${data.shapes[data.shape[i]].join("x")} ${data.kinds[data.kind[i]]}`.toLowerCase());
const expanded = new Set();
let order = [], depths = [], labels = [], active = 0;
const as_tree = () => state.view === "tree" && !state.q && !state.sort && state.show === "all" && state.kind < 0;
const kids_of = (node) => [...node.kids.values()].map(joined);
const grow = () => { // open all scopes of a level while few rows come of it
  let level = kids_of(joined(tree).node), seen = level.length;
  while (level.length) {
    const inner = level.filter((k) => k.node.kids.size), next = inner.flatMap((k) => kids_of(k.node));
    if (!inner.length || seen + next.length > 40) break;
    for (const { node } of inner) expanded.add(node);
    seen += next.length;
    level = next;
  }
};
const walk = (node, depth) => {
  for (const { node: kid, name } of kids_of(node)) {
    if (kid.leaf >= 0) { order.push(kid.leaf); depths.push(depth); labels.push(name); }
    if (!kid.kids.size) continue;
    order.push(kid); depths.push(depth); labels.push(name);
    if (expanded.has(kid)) walk(kid, depth + 1);
  }
};
const select = () => {
  order = []; depths = []; labels = [];
  let tensors = 0, size = 0;
  if (as_tree()) {
    const root = node_of(state.scope), top = joined(root).node;
    walk(top, 0);
    if (top.leaf >= 0 && !top.kids.size) { order.push(top.leaf); depths.push(0); labels.push(told_name(top.leaf)); } // the only one
    tensors = root.tensors; size = root.bytes;
  } else {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean), keep = filters[state.show][1];
    for (let i = 0; i < rows; i++) {
      if (keep(i) && (state.kind < 0 || data.kind[i] === state.kind) && (!state.scope || data.names[i].startsWith(state.scope)) && words.every((w) => haystack[i].includes(w))) order.push(i);
    }
    const column = columns.find((c) => c.id === state.sort);
    if (column) {
      const keys = order.map(column.key), at = order.map((_, k) => k), turn = state.down ? -1 : 1;
      at.sort((a, b) => (keys[a] < keys[b] ? -turn : keys[a] > keys[b] ? turn : a - b));
      order = at.map((k) => order[k]);
    }
    tensors = order.length;
    for (const i of order) size += data.bytes[i];
  }
  active = Math.min(active, Math.max(0, order.length - 1));
  const within = [state.scope ? `in ${state.scope}` : "", state.kind >= 0 ? data.kinds[state.kind] : ""].filter(Boolean).join(", ");
  $("found").replaceChildren(tensors === rows ? many(rows, "tensor") : `${count(tensors)} of ${many(rows, "tensor")}, ${bytes(size)}${within ? `: ${within}` : ""} `,
    ...(tensors === rows ? [] : [button("Show all", () => { look_at({}); }, LINK)]));
  $("scroll").setAttribute("aria-rowcount", order.length + 1);
  write(); draw_head(); draw_chips(); draw_table(true);
};
const look_at = (what) => { Object.assign(state, { q: "", show: "all", scope: "", kind: -1 }, what); $("search").value = state.q; restart(); draw_map(); draw_sums(); $("tensors").scrollIntoView(); };
const restart = () => { active = 0; $("scroll").scrollTop = 0; select(); };
const toggle = (node, open) => { if (open ?? !expanded.has(node)) expanded.add(node); else expanded.delete(node); select(); };

// --- drawing ---
const tall = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));
const sort_by = (id) => {
  const first = Boolean(columns.find((c) => c.id === id)?.down);
  if (state.sort !== id) { state.sort = id; state.down = first; }
  else if (state.down !== first) { state.sort = ""; state.down = false; }
  else state.down = !state.down;
  restart();
};
const draw_head = () => {
  const focused = document.activeElement?.dataset?.sort;
  $("head").replaceChildren(...columns.map((c) => {
    const sorted = state.sort === c.id ? (state.down ? "descending" : "ascending") : "none";
    const press = button(c.title, () => sort_by(c.id));
    press.dataset.sort = c.id;
    return make("div", { className: `cell ${c.cls}`, role: "columnheader", "aria-sort": sorted }, press);
  }));
  if (focused) $("head").querySelector(`[data-sort="${focused}"]`)?.focus();
  $("sort").replaceChildren(make("option", { value: "" }, "Order of the file"), ...columns.map((c) => make("option", { value: c.id }, `By ${c.title.toLowerCase()}`)));
  $("sort").value = state.sort;
  $("views").replaceChildren(...[["tree", "Tree"], ["list", "List"]].map(([id, title]) => button(title, () => {
    Object.assign(state, { view: id, q: "", sort: "", show: "all", kind: -1 }); $("search").value = ""; restart(); draw_sums();
  }, { "aria-pressed": (as_tree() ? "tree" : "list") === id })));
};
const draw_chips = () => {
  const useful = Object.entries(filters).filter(([id, [, keep]]) => id === "all" || id === state.show || (!Object.hasOwn(checks, id) && data.names.some((_, i) => keep(i)) && data.names.some((_, i) => !keep(i))));
  $("chips").replaceChildren(...(useful.length > 1 ? useful : []).map(([id, [title]]) => button(title, () => { state.show = id; restart(); }, { "aria-pressed": state.show === id })));
};
let shown = "", most = 0;
const draw_table = (force) => {
  const height = tall(), scroll = $("scroll");
  $("space").style.height = `${order.length * height}px`;
  most = Math.max(most, order.length); // rows that are found are fewer: what follows stays in its place
  $("space").style.minHeight = `min(72vh - 2 * var(--row), ${most * height}px)`;
  const first = Math.max(0, Math.floor(scroll.scrollTop / height) - 8);
  const last = Math.min(order.length, first + Math.ceil(scroll.clientHeight / height) + 16);
  const mark = `${first} ${last} ${active}`;
  if (!force && mark === shown) return;
  shown = mark;
  const out = [];
  for (let k = first; k < last; k++) out.push(row(k, height));
  $("space").replaceChildren(...out);
  if (order.length) scroll.setAttribute("aria-activedescendant", `row-${active}`); else scroll.removeAttribute("aria-activedescendant");
};
const about = (i) => (compared // the second line of a narrow row
  ? [status(i), unpaired(i) ? "NaN or Inf" : "", measure("change", i) ? change_text(measure("change", i)) : "", measure("max_abs", i) ? `max |d| ${number(measure("max_abs", i))}` : "", shapes[data.shape[i]]]
  : [titles(i), data.dtypes[data.dtype[i]], shapes[data.shape[i]], bytes(data.bytes[i]), data.values && data.std[i] !== null ? `std ${number(data.std[i])}` : ""]).filter(Boolean).join(" · ");
const cells = (k) => {
  const item = order[k], tensor = typeof item === "number", name = !tensor ? labels[k] : as_tree() && labels[k]?.trim() ? labels[k] : told_name(item);
  const bad = tensor && (comparing ? unpaired(item) : converted ? changed(item) : severe(item).length > 0);
  const cell = (cls, text, title) => make("div", { className: `cell ${cls}${bad && /flags|name|status/.test(cls) ? " bad" : ""}`, role: "gridcell", title: title || "" }, text);
  const inner = tensor ? make("span", {}, ...breakable(name)) : make("span", {}, make("i", { className: expanded.has(item) ? "arrow down" : "arrow", ariaHidden: "true" }), name);
  const first = cell("name", inner, tensor ? data.names[item] : item.full);
  first.style.paddingLeft = `${as_tree() ? depths[k] * 16 + (tensor ? 16 : 0) : 0}px`;
  const sums = tensor ? "" : { shape: `${many(item.tensors, "tensor")}`, count: item.count ? brief(item.count) : "", size: bytes(item.bytes), flags: item.bad ? `in ${count(item.bad)}` : "" };
  if (narrow.matches) return [first, cell("soft about", tensor ? about(item) : [sums.shape, sums.size, sums.flags].filter(Boolean).join(" · "))];
  return [first, ...columns.slice(1).map((c) => cell(`${c.cls}${tensor ? "" : " soft"}${c.id === "status" ? " status" : ""}`, tensor ? c.text(item) : sums[c.id] || "", c.cls.includes("name") && tensor ? c.text(item) : ""))];
};
const row = (k, height) => {
  const item = order[k], tensor = typeof item === "number";
  const node = make("div", { className: tensor ? "row" : "row group", role: "row", id: `row-${k}`, "aria-rowindex": k + 2, "aria-selected": k === active, onclick: () => { active = k; if (tensor) { draw_table(true); open_tensor(item); } else toggle(item); } });
  if (as_tree()) node.setAttribute("aria-level", (depths[k] || 0) + 1);
  if (!tensor) node.setAttribute("aria-expanded", expanded.has(item));
  node.style.top = `${k * height}px`;
  node.append(...cells(k));
  return node;
};
const move = (to) => {
  const scroll = $("scroll"), height = tall(), head = $("head").offsetHeight;
  active = Math.max(0, Math.min(order.length - 1, to));
  const top = active * height;
  if (top < scroll.scrollTop) scroll.scrollTop = top;
  if (top + height + head > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + height + head - scroll.clientHeight;
  draw_table(true);
};
$("scroll").addEventListener("scroll", () => requestAnimationFrame(() => draw_table(false)), { passive: true });
new ResizeObserver(() => draw_table(true)).observe($("scroll"));
$("scroll").addEventListener("keydown", (e) => {
  if (e.target !== $("scroll")) return;
  const page = Math.max(1, Math.floor($("scroll").clientHeight / tall()) - 2), item = order[active], group = typeof item === "object";
  const steps = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: order.length - 1 };
  if (e.key in steps) { e.preventDefault(); move(steps[e.key]); }
  if (group && (e.key === "ArrowRight" || e.key === "ArrowLeft")) { e.preventDefault(); toggle(item, e.key === "ArrowRight"); }
  if ((e.key === "Enter" || e.key === " ") && order.length) { e.preventDefault(); if (group) toggle(item); else open_tensor(item); }
});
