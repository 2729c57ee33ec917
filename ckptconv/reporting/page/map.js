// --- the map: area is parameters or bytes; what is built alike is drawn alike ---
const LEAST = 26, TITLE = 18; // pixels: the side of a scope that is opened, and the height of its title
const pattern = (text) => text.replace(/\d+/g, "#");
const ruler = document.createElement("canvas").getContext("2d");
const fits = (text, width, weight = 600) => { ruler.font = `${weight} 12px system-ui, sans-serif`; return ruler.measureText(text).width <= width - 10; };
// The label of a tile: on one line, on one for each word, or upright; a word is never broken.
const label_of = (given, w, h) => {
  const names = given.map(visible);
  const words = names[0].match(/[^._/\-:]+[._/\-:]*|[._/\-:]+/g) || [];
  const packed = words.reduce((lines, word) => {
    const last = lines[lines.length - 1];
    return last && fits(last + word, w, 400) ? [...lines.slice(0, -1), last + word] : [...lines, word];
  }, []);
  const tries = [[names[0]], packed, [names[1]]].filter((lines) => lines.length && lines[0]);
  const found = tries.find((lines) => h >= 15 * lines.length + 3 && lines.every((l) => fits(l, w, 400)));
  if (found) return { lines: found, upright: false };
  const upright = w >= 19 ? names.find((n) => n && fits(n, h, 400)) : "";
  return { lines: upright ? [upright] : [], upright: Boolean(upright) };
};
const size = (node) => node[state.unit];
const kind_colour = (node) => { // of the kind that has nearly all of a scope, otherwise of none
  const [first] = [...node.kinds[state.unit]].sort((a, b) => b[1] - a[1]);
  return first && first[1] >= 0.9 * size(node) ? `var(--k${first[0]})` : "var(--mixed)";
};
const squarify = (items, box) => { // rows along the shorter side, as square as they come
  let [x, y, w, h] = box, rest = items.slice(), sum = items.reduce((s, n) => s + n.size, 0);
  const out = [];
  while (rest.length && w > 0 && h > 0) {
    const side = Math.min(w, h), scale = (w * h) / sum;
    let take = 1, worst = Infinity, part = 0;
    for (; take <= rest.length; take++) {
      part += rest[take - 1].size * scale;
      const big = rest[0].size * scale, small = rest[take - 1].size * scale;
      const now = Math.max((side * side * big) / (part * part), (part * part) / (side * side * small));
      if (now > worst) break;
      worst = now;
    }
    const group = rest.slice(0, Math.max(1, take - 1)), total = group.reduce((s, n) => s + n.size, 0), deep = (total * scale) / side;
    let at = 0;
    for (const n of group) {
      const long = (n.size / total) * side;
      out.push([n, w < h ? [x + at, y, long, deep] : [x, y + at, deep, long]]);
      at += long;
    }
    if (w < h) { y += deep; h -= deep; } else { x += deep; w -= deep; }
    rest = rest.slice(group.length);
    sum -= total;
  }
  return out;
};
const gridded = (items, [x, y, w, h]) => { // equal areas in rows of equal length, or nearly: nothing looks special
  const n = items.length, shapes = [];
  for (let lines = 1; lines <= n; lines++) {
    const wide = w / Math.ceil(n / lines), high = h / lines;
    shapes.push([Math.max(wide / high, high / wide) * (n % lines ? 1.6 : 1), lines]);
  }
  const lines = shapes.sort((a, b) => a[0] - b[0])[0][1], out = [];
  let at = 0, top = y;
  for (let k = 0; k < lines; k++) {
    const row = items.slice(at, at + Math.ceil((n - at) / (lines - k))), high = (h * row.length) / n;
    row.forEach((item, j) => out.push([item, [x + (w * j) / row.length, top, w / row.length, high]]));
    at += row.length;
    top += high;
  }
  return out;
};
const inner = (node) => [...node.kids.values()].filter((k) => size(k) > 0);
const parts = (node, box) => { // the boxes of what a scope holds; small ones are counted
  const area = box[2] * box[3], total = size(node) || 1;
  let kids = [...node.kids.values()].map((k) => { const { node: n, name } = joined(k); return { node: n, name, size: size(n) }; });
  if (node.leaf >= 0) kids.push({ node: { ...node, kids: new Map(), [state.unit]: columns_of[state.unit][node.leaf] }, name: node.kids.size ? "(itself)" : told_name(node.leaf), size: columns_of[state.unit][node.leaf] });
  kids = kids.filter((k) => k.size > 0);
  const small = kids.filter((k) => (k.size / total) * area < 90);
  if (small.length > 1) {
    const few = new Set(small);
    kids = kids.filter((k) => !few.has(k));
    const tensors = small.reduce((s, k) => s + k.node.tensors, 0);
    kids.push({ node: null, name: `${count(tensors)} small`, size: small.reduce((s, k) => s + k.size, 0), within: node });
  }
  const groups = new Map();
  for (const kid of kids) { // numbered alike and as large: one block, in which all are equal
    const key = kid.node ? `${pattern(kid.name)}|${/\d/.test(kid.name) ? Math.round(Math.log(kid.size) * 50) : kid.name}` : kid.name;
    put(groups, key, kid);
  }
  const blocks = [...groups.values()].map((list) => ({ list, size: list.reduce((s, k) => s + k.size, 0) })).sort((a, b) => b.size - a.size);
  return squarify(blocks, box).flatMap(([block, inner]) => gridded(block.list, inner));
};
// Scopes of one pattern are opened together: if the smallest of them has room, or not at all.
const tiles = (root, box) => {
  const out = [];
  let level = parts(root, box).map(([item, at]) => ({ item, at, key: pattern(item.name), depth: 0 }));
  for (let depth = 0; level.length && depth < 8; depth++) {
    const classes = new Map(), next = [];
    for (const tile of level) put(classes, tile.key, tile);
    for (const same of classes.values()) {
      const closed = same.some(({ item, at: [, , w, h] }) => !item.node || !inner(item.node).length || w < 3 * LEAST || h < 2 * LEAST + TITLE);
      for (const tile of same) {
        const [x, y, w, h] = tile.at;
        out.push({ ...tile, open: !closed });
        if (!closed) next.push(...parts(tile.item.node, [x + 2, y + TITLE, w - 4, h - TITLE - 2]).map(([item, at]) => ({ item, at, key: `${tile.key}|${pattern(item.name)}`, depth: depth + 1 })));
      }
    }
    level = out.length + next.length > 900 ? [] : next;
  }
  return out;
};
const node_of = (text) => {
  let at = tree;
  for (const word of split(text).slice(0, -1)) at = at?.kids.get(word);
  return at || tree;
};
const amount = (n) => (state.unit === "bytes" ? bytes(n) : brief(n));
const zoom = (text) => { state.scope = text; restart(); draw_map(); };
const draw_map = () => {
  $("where").hidden = !alone; // of several, the changes say where to look
  if (!alone) return;
  const at = node_of(state.scope), box = $("map"), words = split(state.scope).slice(0, -1), total = size(at) || 1;
  $("crumbs").replaceChildren(button("all", () => zoom("")), ...words.flatMap((word, k) => [
    make("span", {}, data.separator), button(word || "(empty)", () => zoom(words.slice(0, k + 1).join(data.separator) + data.separator))]),
  make("span", { className: "soft" }, ` ${amount(size(at))}${state.unit === "bytes" ? "" : ` parameter${s(size(at))}`}`));
  const nodes = tiles(joined({ ...at, name: "" }).node, [0, 0, box.clientWidth, box.clientHeight]).map(({ item, at: [x, y, w, h], open, depth }) => {
    const short = item.name.split(data.separator)[0], title = [item.name, short].find((n) => n && fits(n, w));
    const { lines, upright } = open ? { lines: title ? [title] : [], upright: false } : label_of([item.name, short], w, h), name = lines.join("");
    const text = `${name || item.name} ${amount(item.size)}, ${percent(item.size / total)}${name && name !== item.name ? ` (${item.name})` : ""}`;
    const go = () => (!item.node ? zoom(item.within.full) : inner(item.node).length ? zoom(item.node.full) : open_tensor(item.node.leaf));
    const tile = button("", go, { title: item.node?.full ? `${item.node.full}\n${amount(item.size)}, ${percent(item.size / total)}` : text, "aria-label": text, tabIndex: -1 });
    tile.className = open ? "scope" : item.node ? "tile" : "tile rest";
    if (upright) tile.classList.add("upright");
    tile.append(...lines.map((line) => make("span", {}, line)));
    if (open && name && fits(`${name}   ${amount(item.size)}`, w - 16)) tile.append(" ", make("small", {}, amount(item.size)));
    else if (!open && name && !upright && h > 15 * lines.length + 19 && fits(amount(item.size), w, 400)) tile.append(" ", make("small", {}, amount(item.size)));
    Object.assign(tile.style, { left: `${x}px`, top: `${y}px`, width: `${w}px`, height: `${h}px`, zIndex: depth });
    if (!open) tile.style.background = item.node ? kind_colour(item.node) : "var(--mixed)";
    return tile;
  });
  box.replaceChildren(...nodes);
  if (nodes.length) nodes[0].tabIndex = 0; else box.append(make("p", { className: "soft" }, "Nothing here has a size."));
};
$("map").addEventListener("keydown", (e) => { // one stop for the tab key; arrows go to the nearest tile on that side
  const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }, from = document.activeElement;
  if (!(e.key in ways) || from.parentNode !== $("map")) return;
  e.preventDefault();
  const [dx, dy] = ways[e.key], corner = (n) => [n.offsetLeft, n.offsetTop], [x, y] = corner(from);
  let best = null, least = Infinity;
  for (const tile of $("map").children) {
    const [u, v] = corner(tile), along = (u - x) * dx + (v - y) * dy, aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
    if (along > 0 && along + 3 * aside < least) { least = along + 3 * aside; best = tile; }
  }
  if (best) { from.tabIndex = -1; best.tabIndex = 0; best.focus(); }
});

// --- sums by kind, by layer and by dtype ---
const bar = (label, n, most, colour, told, go, pressed) => {
  const fill = make("i");
  fill.style.width = `${(100 * n) / (most || 1)}%`;
  if (colour) fill.style.background = colour;
  const whole = button("", go, { className: "bar", "aria-pressed": pressed });
  whole.append(make("span", { className: "cell" }, ...breakable(label)), make("span", {}, fill), make("span", { className: "told" }, told));
  return whole;
};
const draw_sums = () => {
  const column = columns_of[state.unit], by = new Map(), dtypes = new Map(), within = (i) => here(i) && data.names[i].startsWith(state.scope);
  for (let i = 0; i < rows; i++) {
    if (!within(i)) continue;
    by.set(data.kind[i], (by.get(data.kind[i]) || 0) + column[i]);
    dtypes.set(data.dtype[i], (dtypes.get(data.dtype[i]) || 0) + column[i]);
  }
  const told = (list) => { const part = shares(list.map(([, n]) => n)); return list.map(([k, n], at) => [k, n, `${part[at]} · ${amount(n)}`]); }, most = (map) => Math.max(1, ...map.values());
  const sorted = (map) => [...map].filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  $("kinds").replaceChildren(...told(sorted(by)).map(([k, n, text]) => bar(data.kinds[k], n, most(by), `var(--k${k})`, text, () => { state.kind = state.kind === k ? -1 : k; restart(); draw_sums(); }, state.kind === k)));
  $("dtypes").replaceChildren(...told(sorted(dtypes)).map(([d, n, text]) => bar(data.dtypes[d], n, most(dtypes), "", text, () => { $("search").value = state.q = state.q === data.dtypes[d] ? "" : data.dtypes[d]; restart(); }, state.q === data.dtypes[d])));
  draw_layers(column);
};
const draw_layers = (column) => { // columns of a stack, each kind a part of them
  const stacks = new Map();
  for (let i = 0; i < rows; i++) {
    if (data.layer[i] < 0 || !here(i) || !data.names[i].startsWith(state.scope)) continue;
    const stack = stacks.get(data.stack[i]) || stacks.set(data.stack[i], { sum: 0, layers: new Map() }).get(data.stack[i]);
    const layer = stack.layers.get(data.layer[i]) || stack.layers.set(data.layer[i], new Map()).get(data.layer[i]);
    layer.set(data.kind[i], (layer.get(data.kind[i]) || 0) + column[i]);
    stack.sum += column[i];
  }
  const large = [...stacks].filter(([, s]) => s.layers.size > 2 && s.sum > 0).sort((a, b) => b[1].sum - a[1].sum).slice(0, 2);
  $("layers").replaceChildren(...large.flatMap(([s, { layers }]) => {
    const order = [...layers].sort((a, b) => a[0] - b[0]), sums = order.map(([, kinds]) => [...kinds.values()].reduce((a, b) => a + b, 0));
    const most = Math.max(...sums), few = Math.min(...sums);
    const label = `${amount(few)}${amount(few) === amount(most) ? "" : ` to ${amount(most)}`} in each of ${many(order.length, "layer")}`;
    const box = svg("svg", { viewBox: `0 0 ${order.length * 10} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `${stack_name(s)}: ${label}`, class: "layers" });
    order.forEach(([n, kinds], k) => {
      let y = 100;
      for (const kind of data.kinds.keys()) {
        const high = (100 * (kinds.get(kind) || 0)) / most;
        y -= high;
        if (!high) continue;
        box.append(svg("rect", { x: k * 10 + 1, width: 8, y, height: high }, svg("title", {}, `${data.stacks[s].replace("*", n)}: ${data.kinds[kind]}, ${amount(kinds.get(kind))}`)));
        box.lastChild.style.fill = `var(--k${kind})`;
      }
    });
    return [make("h3", {}, "By layer: ", make("code", {}, stack_name(s))), box, make("p", { className: "soft small" }, label)];
  }));
};
