"use strict";
// Everything drawn here is text: no name ever becomes markup. State lives in the address (#q=...), so views can be shared.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = data.names.length, conversion = data.conversion;
  const $ = (id) => document.getElementById(id);
  const make = (tag, props = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(props)) {
      if (key in node && key !== "role") node[key] = value; else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };

  // --- words and numbers ---
  const bytes = (n) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    while (n >= 1000 && i < 4) { n /= 1000; i++; }
    return `${i ? n.toFixed(1) : n} ${units[i]}`;
  };
  const count = (n) => Number(n).toLocaleString("en");
  const number = (n) => (n === null || n === undefined ? "–" : typeof n !== "number" || (Number.isInteger(n) && Math.abs(n) < 1e9) ? String(n)
    : Math.abs(n) < 1e-3 || Math.abs(n) >= 1e9 ? n.toExponential(3) : String(Number(n.toPrecision(5))));
  const shape = (dims) => dims.join(" × ") || "scalar";
  const shapes = data.shapes.map(shape), roles = data.roles.map((r) => r || "weight");
  const value = (column, i) => (data.values ? data[column][i] : null);
  const unwell = (i) => data.values && (data.nan[i] > 0 || data.inf[i] > 0);
  const status = (i) => (conversion ? conversion.rows[i][2] : "");
  const changed = (i) => !["", "equal"].includes(status(i));
  const origin = (i) => (conversion ? conversion.rows[i][1].map((s) => s[0]).join(", ") : "");
  const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

  // --- columns: title, text, key to sort by, width, classes ---
  const columns = [
    { id: "name", title: "Name", text: (i) => data.names[i], key: (i) => data.natural[i], width: "minmax(220px, 4fr)", cls: "name" },
    ...(conversion ? [
      { id: "from", title: "From", text: origin, key: origin, width: "minmax(160px, 3fr)", cls: "wide name" },
      { id: "status", title: "Values", text: status, key: status, width: "80px", cls: "wide" },
    ] : []),
    { id: "dtype", title: "Dtype", text: (i) => data.dtypes[data.dtype[i]], key: (i) => data.dtypes[data.dtype[i]], width: "90px", cls: "" },
    { id: "shape", title: "Shape", text: (i) => shapes[data.shape[i]], key: (i) => data.count[i], width: "minmax(110px, 1fr)", cls: "" },
    { id: "size", title: "Size", text: (i) => bytes(data.bytes[i]), key: (i) => data.bytes[i], width: "80px", cls: "num" },
    { id: "role", title: "Role", text: (i) => roles[data.role[i]], key: (i) => roles[data.role[i]], width: "64px", cls: "wide" },
    ...(data.values && !conversion ? ["min", "max", "mean", "std"].map((m) => (
      { id: m, title: m, text: (i) => number(value(m, i)), key: (i) => (value(m, i) === null ? -Infinity : Number(value(m, i))), width: "88px", cls: "num wide" })) : []),
  ];
  $("table").style.setProperty("--grid", columns.map((c) => c.width).join(" "));

  // --- state, and the address that keeps it ---
  const filters = { all: ["All", () => true], weight: ["Weights", (i) => !data.roles[data.role[i]]], other: ["Slots and state", (i) => Boolean(data.roles[data.role[i]])],
    bad: ["NaN or Inf", unwell], changed: ["Changed", changed] };
  const state = { q: "", sort: "", down: false, show: "all", scope: "", dtype: "", open: -1 };
  const read = () => {
    const said = new URLSearchParams(location.hash.slice(1));
    state.q = said.get("q") || "";
    state.sort = columns.some((c) => c.id === said.get("sort")) ? said.get("sort") : "";
    state.down = said.get("down") === "1";
    state.show = Object.hasOwn(filters, said.get("show")) ? said.get("show") : "all";
    state.scope = said.get("scope") || "";
    state.open = said.has("open") ? Number(said.get("open")) : -1;
  };
  const write = () => {
    const said = new URLSearchParams();
    for (const key of ["q", "sort", "scope"]) if (state[key]) said.set(key, state[key]);
    if (state.down) said.set("down", "1");
    if (state.show !== "all") said.set("show", state.show);
    history.replaceState(null, "", said.size ? `#${said}` : location.pathname + location.search);
  };

  // --- search and sort ---
  const haystack = data.names.map((n, i) => `${n} ${origin(i)} ${data.dtypes[data.dtype[i]]} ${data.shapes[data.shape[i]].join("x")}`.toLowerCase());
  let order = [], active = 0;
  const select = () => {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    const keep = filters[state.show][1];
    order = [];
    for (let i = 0; i < rows; i++) {
      if (keep(i) && (!state.scope || data.names[i].startsWith(state.scope)) && words.every((w) => haystack[i].includes(w))) order.push(i);
    }
    const column = columns.find((c) => c.id === state.sort);
    if (column) {
      const keys = order.map(column.key), at = order.map((_, k) => k), turn = state.down ? -1 : 1;
      at.sort((a, b) => (keys[a] < keys[b] ? -turn : keys[a] > keys[b] ? turn : a - b));
      order = at.map((k) => order[k]);
    }
    active = Math.min(active, Math.max(0, order.length - 1));
    let size = 0;
    for (const i of order) size += data.bytes[i];
    $("found").textContent = order.length === rows ? `${count(rows)} tensor${rows === 1 ? "" : "s"}` : `${count(order.length)} of ${count(rows)} tensors, ${bytes(size)}`;
    $("table").setAttribute("aria-rowcount", order.length + 1);
    write();
    head();
    draw(true);
  };

  // --- the table: only the rows in sight exist ---
  const scroll = $("scroll"), space = $("space");
  const tall = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));
  const head = () => {
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.sort : "";
    $("head").replaceChildren(...columns.map((c) => {
      const sorted = state.sort === c.id ? (state.down ? "descending" : "ascending") : "none";
      const button = make("button", { type: "button", textContent: c.title, onclick: () => sort(c.id) });
      button.dataset.sort = c.id;
      const cell = make("div", { className: `cell ${c.cls}`, role: "columnheader", "aria-sort": sorted }, button);
      return cell;
    }));
    if (focused) $("head").querySelector(`[data-sort="${focused}"]`)?.focus();
  };
  const sort = (id) => {
    if (state.sort !== id) { state.sort = id; state.down = ["size", "shape"].includes(id); }
    else if (state.down !== ["size", "shape"].includes(id)) { state.sort = ""; state.down = false; }
    else state.down = !state.down;
    active = 0;
    scroll.scrollTop = 0;
    select();
  };
  let shown = "";
  const draw = (force) => {
    const height = tall(), first = Math.max(0, Math.floor(scroll.scrollTop / height) - 8);
    const last = Math.min(order.length, first + Math.ceil(scroll.clientHeight / height) + 16);
    const mark = `${first} ${last} ${active}`;
    if (!force && mark === shown) return;
    shown = mark;
    space.style.height = `${order.length * height}px`;
    const out = [];
    for (let k = first; k < last; k++) out.push(row(k, height));
    space.replaceChildren(...out);
    scroll.setAttribute("aria-activedescendant", order.length ? `row-${active}` : "");
  };
  const row = (k, height) => {
    const i = order[k];
    const node = make("div", { className: "row", role: "row", id: `row-${k}`, "aria-rowindex": k + 2, "aria-selected": k === active, onclick: () => { active = k; draw(true); open(i); } });
    node.style.top = `${k * height}px`;
    for (const c of columns) {
      const text = c.text(i);
      const cell = make("div", { className: `cell ${c.cls}`, role: "gridcell", title: c.id === "name" || c.id === "from" ? text : "" }, text);
      if ((c.id === "name" && unwell(i)) || (c.id === "status" && changed(i))) cell.classList.add("bad");
      node.append(cell);
    }
    return node;
  };
  const move = (to) => {
    active = Math.max(0, Math.min(order.length - 1, to));
    const height = tall(), top = active * height;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    if (top + height > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + height - scroll.clientHeight;
    draw(true);
  };
  scroll.addEventListener("scroll", () => requestAnimationFrame(() => draw(false)), { passive: true });
  new ResizeObserver(() => draw(true)).observe(scroll);
  scroll.addEventListener("keydown", (e) => {
    const page = Math.max(1, Math.floor(scroll.clientHeight / tall()) - 1);
    const steps = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: order.length - 1 };
    if (e.key in steps) { e.preventDefault(); move(steps[e.key]); }
    if ((e.key === "Enter" || e.key === " ") && order.length) { e.preventDefault(); open(order[active]); }
  });

  // --- one tensor ---
  const facts = (pairs) => make("dl", { className: "facts" }, ...pairs.map(([k, v]) => make("div", {}, make("dt", {}, k), make("dd", {}, String(v)))));
  const svg = (tag, props) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
    return node;
  };
  const histogram = (i) => {
    const bins = decode(data.bins[i]);
    const label = `${bins.length} equal bins from ${number(data.min[i])} to ${number(data.max[i])}`;
    const box = svg("svg", { viewBox: `0 0 ${bins.length * 10} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Histogram: ${label}` });
    bins.forEach((n, k) => box.append(svg("rect", { x: k * 10 + 1, width: 8, y: 100 - n / 2.6, height: n / 2.6 })));
    return make("figure", {}, box, make("figcaption", {}, `Histogram, ${label}`));
  };
  const palette = () => {
    const style = getComputedStyle(document.documentElement);
    const [low, mid, high] = ["--low", "--mid", "--high"].map((name) => style.getPropertyValue(name).split(",").map(Number));
    return (n) => {
      if (n === 255) return [255, 200, 0];
      const x = (n - 127) / 127, end = x < 0 ? low : high, share = Math.sqrt(Math.abs(x));
      return mid.map((m, c) => m + (end[c] - m) * share);
    };
  };
  const heatmap = (i) => {
    const [high, wide, text, peak] = data.heat[i], cells = decode(text), colour = palette();
    const canvas = make("canvas", { width: wide, height: high, role: "img", "aria-label": `Heat map of ${cells.length} evenly spaced values between plus and minus ${number(peak)}` });
    const context = canvas.getContext("2d"), image = context.createImageData(wide, high);
    cells.forEach((n, k) => image.data.set([...colour(n), 255], 4 * k));
    context.putImageData(image, 0, 0);
    return make("figure", {}, canvas, make("figcaption", {}, `${high} × ${wide} evenly spaced values, blue −${number(peak)} to red ${number(peak)}; yellow is NaN or Inf`));
  };
  const pair = (i) => {
    const [rule, sources, kind, found] = conversion.rows[i];
    const side = (title, lines) => make("div", {}, make("h3", {}, title), ...lines.map((l) => make("div", { className: "name" }, l)));
    const left = sources.length ? sources.map(([n, d, s]) => `${n}  ${d} ${shape(s)}`) : ["no source: only in the target"];
    const out = [make("h3", {}, "Where it came from"), make("div", { className: "pair" }, side("Source", left), side("Target", [`${data.names[i]}  ${data.dtypes[data.dtype[i]]} ${shapes[data.shape[i]]}`]))];
    if (rule >= 0) out.push(make("p", {}, "Rule: ", make("code", {}, conversion.rules[rule] || "the name is kept")));
    if (kind) out.push(make("p", { className: changed(i) ? "bad" : "" }, kind === "equal" ? "Bit for bit what the conversion gives." : `Against what the conversion gives: ${kind}.`));
    if (found) out.push(facts([["differing", `${count(found.differing)} of ${count(found.elements)}`], ["first at", `[${found.first.join(", ")}]`], ["max abs", number(found.abs)], ["relative", number(found.relative)], ["ULP", number(found.ulp)], ["cosine", number(found.cosine)]]));
    return out;
  };
  const open = (i) => {
    if (!(i >= 0 && i < rows)) return;
    const body = [
      make("button", { type: "button", className: "close", "aria-label": "Close", onclick: () => $("detail").close() }, "✕"),
      make("h2", { id: "detail-name" }, data.names[i]),
      facts([["dtype", data.dtypes[data.dtype[i]]], ["shape", shapes[data.shape[i]]], ["parameters", count(data.count[i])], ["size", bytes(data.bytes[i])], ["role", roles[data.role[i]]]]),
    ];
    if (conversion) body.push(...pair(i));
    if (data.values) {
      body.push(make("h3", {}, "Values"), facts(["min", "max", "mean", "std", "zeros", "nan", "inf"].map((m) => [m, number(data[m][i])])));
      if (unwell(i)) body.push(make("p", { className: "alert" }, `${count(data.nan[i])} NaN and ${count(data.inf[i])} infinite values.`));
      const pictures = [data.bins[i] ? histogram(i) : null, data.heat[i] ? heatmap(i) : null].filter(Boolean);
      body.push(make("div", { className: "pictures" }, ...pictures));
      if (!pictures.length && data.count[i]) body.push(make("p", { className: "kind" }, "Pictures are kept of the largest tensors only."));
    } else body.push(make("p", { className: "kind" }, "Values were not read (--no-values)."));
    const tied = data.ties.find((g) => g.includes(data.names[i]));
    if (tied) body.push(make("p", {}, `Tied: ${tied.join(" = ")}`));
    $("detail").replaceChildren(...body);
    if (!$("detail").open) $("detail").showModal();
  };
  $("detail").addEventListener("click", (e) => { if (e.target === $("detail")) $("detail").close(); });
  $("detail").addEventListener("close", () => scroll.focus({ preventScroll: true }));

  // --- the treemap ---
  const tree = { name: "", full: "", size: 0, kids: new Map(), leaf: -1 };
  for (let i = 0; i < rows; i++) {
    let at = tree, full = "";
    const words = data.names[i].split(data.separator);
    tree.size += data.bytes[i];
    words.forEach((word, k) => {
      full += word + (k < words.length - 1 ? data.separator : "");
      let next = at.kids.get(word);
      if (!next) at.kids.set(word, (next = { name: word, full, size: 0, kids: new Map(), leaf: -1 }));
      next.size += data.bytes[i];
      if (k < words.length - 1) next.full = full; else next.leaf = i;
      at = next;
    });
  }
  const items = (here) => { // open up the largest scopes until there is something to see
    const list = [...here.kids.values()].filter((n) => n.size > 0);
    while (list.length < 40) {
      const open = list.filter((n) => n.kids.size && n.leaf < 0).sort((a, b) => b.size - a.size)[0];
      if (!open || list.length + open.kids.size > 150) break;
      const kids = [...open.kids.values()].filter((n) => n.size > 0).map((k) => ({ ...k, name: `${open.name}${data.separator}${k.name}` }));
      list.splice(list.indexOf(open), 1, ...kids);
    }
    return list.sort((a, b) => b.size - a.size);
  };
  const squarify = (items, x, y, w, h, out) => { // rows along the shorter side, as square as they come
    let rest = items.slice(), sum = items.reduce((s, n) => s + n.size, 0);
    while (rest.length && w > 0 && h > 0) {
      const side = Math.min(w, h), scale = (w * h) / sum;
      let take = 1, worst = Infinity;
      for (; take <= rest.length; take++) {
        const part = rest.slice(0, take).reduce((s, n) => s + n.size, 0) * scale;
        const big = rest[0].size * scale, small = rest[take - 1].size * scale;
        const now = Math.max((side * side * big) / (part * part), (part * part) / (side * side * small));
        if (now > worst) break;
        worst = now;
      }
      const group = rest.slice(0, Math.max(1, take - 1)), total = group.reduce((s, n) => s + n.size, 0), deep = (total * scale) / side;
      let at = 0;
      for (const n of group) {
        const long = (n.size / total) * side;
        out.push(w < h ? [n, x + at, y, long, deep] : [n, x, y + at, deep, long]);
        at += long;
      }
      if (w < h) { y += deep; h -= deep; } else { x += deep; w -= deep; }
      rest = rest.slice(group.length);
      sum -= total;
    }
    return out;
  };
  const hue = (text) => [...text.replace(/\d+/g, "#")].reduce((h, c) => (h * 31 + c.codePointAt(0)) % 360, 7);
  const node_of = (scope) => {
    let at = tree;
    for (const word of scope.split(data.separator).slice(0, -1)) at = at?.kids.get(word);
    return at || tree;
  };
  const zoom = (scope) => { state.scope = scope; active = 0; scroll.scrollTop = 0; select(); map(); };
  const map = () => {
    const here = node_of(state.scope), box = $("map"), w = box.clientWidth, h = box.clientHeight;
    const words = state.scope.split(data.separator).slice(0, -1);
    const crumbs = [make("button", { type: "button", onclick: () => zoom("") }, "all")];
    words.forEach((word, k) => crumbs.push(make("span", {}, data.separator), make("button", { type: "button", onclick: () => zoom(words.slice(0, k + 1).join(data.separator) + data.separator) }, word)));
    crumbs.push(make("span", {}, `  ${bytes(here.size)}`));
    $("crumbs").replaceChildren(...crumbs);
    const kids = items(here);
    const most = kids.slice(0, 150), rest = kids.slice(150).reduce((s, n) => s + n.size, 0);
    if (rest) most.push({ name: `${count(kids.length - 150)} more`, full: "", size: rest, kids: new Map(), leaf: -2 });
    box.replaceChildren(...squarify(most.sort((a, b) => b.size - a.size), 0, 0, w, h, []).map(([n, x, y, wide, high]) => {
      const text = `${n.name}, ${bytes(n.size)}, ${(100 * n.size / (here.size || 1)).toFixed(1)} %`;
      const button = make("button", { type: "button", title: text, "aria-label": text, disabled: n.leaf === -2, onclick: () => (n.kids.size ? zoom(n.full) : open(n.leaf)) });
      if (wide > 36 && high > 18) button.append(make("span", {}, n.name.split(data.separator).slice(-2).join(data.separator)), ...(high > 36 ? [make("small", {}, bytes(n.size))] : []));
      Object.assign(button.style, { left: `${x}px`, top: `${y}px`, width: `${wide}px`, height: `${high}px`, background: `hsl(${hue(n.name)} 55% 76%)` });
      return button;
    }));
    if (!most.length) box.append(make("p", { className: "kind" }, "Nothing here has bytes."));
  };
  addEventListener("resize", () => { map(); draw(true); });

  // --- dtypes and shapes ---
  const bars = (title, entries, unit) => {
    const most = Math.max(1, ...entries.map((e) => e[1]));
    return [make("h3", {}, title), ...entries.map(([label, n, query]) => {
      const fill = make("i");
      fill.style.width = `${(100 * n) / most}%`;
      return make("button", { type: "button", className: "bar", onclick: () => { $("search").value = state.q = query; select(); } }, make("span", { className: "cell" }, label), make("span", {}, fill), make("span", {}, unit(n)));
    })];
  };
  const kinds = () => {
    const by = new Map();
    for (let i = 0; i < rows; i++) by.set(data.shape[i], (by.get(data.shape[i]) || 0) + 1);
    const common = [...by].sort((a, b) => b[1] - a[1]).slice(0, 10);
    $("kinds").replaceChildren(
      ...bars("Bytes by dtype", Object.entries(data.totals.dtypes).sort((a, b) => b[1] - a[1]).map(([d, n]) => [d, n, d]), bytes),
      ...bars(`Most common of ${count(by.size)} shapes`, common.map(([s, n]) => [shapes[s], n, data.shapes[s].join("x")]), (n) => `${count(n)} tensor${n === 1 ? "" : "s"}`),
    );
  };

  // --- warnings, chips, the conversion's remains ---
  const alerts = () => {
    const list = [];
    const tell = (n, text, show) => n && list.push(make("p", { className: "alert" }, `${count(n)} ${text} `, make("button", { type: "button", onclick: () => { state.show = show; chips(); select(); scroll.focus(); } }, "Show them")));
    let bad = 0, other = 0;
    for (let i = 0; i < rows; i++) { bad += unwell(i) ? 1 : 0; other += conversion && changed(i) ? 1 : 0; }
    tell(bad, bad === 1 ? "tensor holds NaN or infinite values." : "tensors hold NaN or infinite values.", "bad");
    tell(other, other === 1 ? "tensor is not what the conversion gives." : "tensors are not what the conversion gives.", "changed");
    $("alerts").replaceChildren(...list);
  };
  const chips = () => {
    const useful = Object.entries(filters).filter(([id, [, keep]]) => id === "all" || id === state.show || data.names.some((_, i) => keep(i)) && data.names.some((_, i) => !keep(i)));
    $("chips").replaceChildren(...(useful.length > 1 ? useful : []).map(([id, [title]]) => make("button", { type: "button", "aria-pressed": state.show === id, onclick: () => { state.show = id; active = 0; chips(); select(); } }, title)));
  };
  const remains = () => {
    const list = (title, items) => (items.length ? [make("details", { open: items.length <= 20 }, make("summary", {}, `${title} (${count(items.length)})`), make("ul", {}, ...items.slice(0, 2000).map((t) => make("li", {}, t))))] : []);
    const uses = conversion.rules.map(() => 0);
    for (const r of conversion.rows) if (r[0] >= 0) uses[r[0]]++;
    const why = (t) => `${t[0]}  ${t[1]} ${shape(t[2])}${t[3] ? ` – ${t[3]}` : ""}`;
    $("rules").replaceChildren(
      ...list("Rules used", conversion.rules.map((r, k) => `${r || "the name is kept"}: ${count(uses[k])}`)),
      ...list("Source tensors that were left out, with the reason", conversion.left.filter((t) => t[3]).map(why)),
      ...list("Source tensors without a partner", conversion.left.filter((t) => !t[3]).map(why)),
      ...list("Target tensors without a source", data.names.filter((_, i) => !conversion.rows[i][1].length)),
      ...list("Tensors that the conversion gives but the target lacks", conversion.missing),
    );
  };

  // --- the summary, and what the file says beside its tensors ---
  const cards = () => {
    const total = data.totals;
    const card = (n, text) => make("div", {}, make("b", {}, n), text);
    $("cards").replaceChildren(
      card(count(total.tensors), total.tensors === 1 ? "tensor" : "tensors"), card(bytes(total.bytes), "in all"), card(count(total.parameters), "parameters in weights"),
      ...(total.all === total.parameters ? [] : [card(count(total.all), "with optimizer slots and state")]),
    );
  };
  const notes = () => {
    const item = (kind, text, ...inner) => make("details", {}, make("summary", {}, make("b", {}, kind), text), ...inner);
    const listed = (names) => make("ul", {}, ...names.map((n) => make("li", {}, n)));
    const metadata = Object.entries(data.metadata);
    const items = data.notes.map(([kind, text, names, n]) => item(kind, `: ${text}${n > 1 ? ` (${count(n)})` : ""}`, listed(n > names.length ? [...names, "…"] : names)));
    if (data.ties.length) items.push(item("tied", `: names of one tensor (${count(data.ties.length)})`, listed(data.ties.slice(0, 200).map((g) => g.join(" = ")))));
    if (metadata.length) items.push(item("metadata", ` (${metadata.length})`, make("dl", {}, ...metadata.flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)]))));
    $("more").hidden = !items.length;
    $("notes").replaceChildren(...items);
  };

  let typing = 0;
  $("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { state.q = $("search").value; active = 0; scroll.scrollTop = 0; select(); }, rows > 20000 ? 120 : 0); });
  $("search").addEventListener("keydown", (e) => { if (e.key === "ArrowDown" || e.key === "Enter") { e.preventDefault(); scroll.focus(); } });
  document.addEventListener("keydown", (e) => {
    if (e.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement?.tagName) && !$("detail").open) { e.preventDefault(); $("search").focus(); }
  });
  const start = () => {
    read();
    $("search").value = state.q;
    const wanted = state.open;
    cards(); notes(); alerts(); chips(); kinds(); map(); select();
    if (conversion) { $("left").hidden = false; remains(); }
    if (wanted >= 0) open(wanted);
  };
  addEventListener("hashchange", start);
  start();
  document.documentElement.dataset.ready = "yes";
})();
