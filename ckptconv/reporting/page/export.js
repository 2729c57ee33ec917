// --- files to take along: the table as CSV or JSON, a picture as PNG ---
const exported = () => { // what is listed, with all columns; the tree lists everything
  const values = data.values ? STATS : [], measures = compared ? ["change", "norm", "apart", "max_abs", "max_rel", "cosine", "differing"] : [];
  const head = ["name", "dtype", "shape", "parameters", "bytes", "role", "kind", "layer", ...values, ...(data.values ? ["found"] : []), ...(compared ? ["from", "status", ...measures] : []), ...(along ? ["norms", "steps", "drifts"] : [])];
  const list = order.every((i) => typeof i === "number") ? order : data.names.map((_, i) => i);
  const lines = list.map((i) => [data.names[i], data.dtypes[data.dtype[i]], data.shapes[data.shape[i]], data.count[i], data.bytes[i], roles[data.role[i]], data.kinds[data.kind[i]], layer_of(i),
    ...values.map((m) => data[m][i]), ...(data.values ? [(flags.get(i) || []).map(([check, , text, index, fresh]) => ({ check, text, index, ...(NEW && { new: fresh }) }))] : []), ...(compared ? [origin(i), status(i), ...measures.map((m) => measure(m, i))] : []), ...(along ? [along.norm[i] || [], along.step[i] || [], along.drift[i] || []] : [])]);
  return { head, lines };
};
const in_csv = (lines) => { // a cell that a spreadsheet would take for a formula begins with an apostrophe
  const quoted = (x) => { const text = String(x ?? ""); return /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `"'${text.replaceAll('"', '""')}"` : /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
  return lines.map((line) => line.map(quoted).join(",")).join("\r\n");
};
const csv = () => {
  const { head, lines } = exported(), shape_at = head.indexOf("shape"), found_at = head.indexOf("found");
  const flat = (x, k) => (k === shape_at ? x.join("x") : k === found_at ? x.map((f) => f.check).join(", ") : Array.isArray(x) ? x.join(" ") : x);
  return in_csv([head, ...lines.map((line) => line.map(flat))]);
};
const json = () => {
  const { head, lines } = exported();
  return JSON.stringify(lines.map((line) => Object.fromEntries(line.map((x, k) => [head[k], x]))), null, 1);
};
const take = (blob, name) => {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
$("csv").addEventListener("click", () => take(new Blob([csv()], { type: "text/csv" }), "tensors.csv"));
$("json").addEventListener("click", () => take(new Blob([json()], { type: "application/json" }), "tensors.json"));

const WIDE = 1200; // pixels of a picture
const drawn = (chart) => { // a copy of a chart on a canvas: no request is needed, which the page would not be allowed
  const style = (node, what) => getComputedStyle(node)[what], ratio = chart.clientHeight / chart.clientWidth || 0.3;
  const canvas = make("canvas", { width: WIDE, height: Math.round(WIDE * ratio) + 110 }), pen = canvas.getContext("2d");
  pen.fillStyle = style(document.body, "backgroundColor");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.translate(0, 50);
  if (chart instanceof HTMLCanvasElement) {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(chart, 0, 0, WIDE, WIDE * ratio);
  } else {
    const [, , wide, high] = chart.getAttribute("viewBox").split(" ").map(Number), sx = WIDE / wide, sy = (WIDE * ratio) / high;
    for (const node of chart.children) {
      const at = (name) => Number(node.getAttribute(name));
      Object.assign(pen, { fillStyle: style(node, "fill"), strokeStyle: style(node, "stroke"), lineWidth: 3, globalAlpha: Number(style(node, "opacity")) });
      if (node.tagName === "rect") pen.fillRect(at("x") * sx, at("y") * sy, at("width") * sx, at("height") * sy);
      pen.beginPath();
      if (node.tagName === "circle") { pen.arc(at("cx") * sx, at("cy") * sy, at("r") * 3, 0, 7); pen.fill(); }
      if (node.tagName === "polyline") { node.getAttribute("points").split(" ").forEach((p) => { const [x, y] = p.split(",").map(Number); pen.lineTo(x * sx, y * sy); }); pen.stroke(); }
    }
    pen.globalAlpha = 1;
  }
  return { canvas, pen, low: WIDE * ratio };
};
const save_picture = (chart, title, text) => {
  const { canvas, pen, low } = drawn(chart);
  pen.fillStyle = getComputedStyle(document.body).color;
  pen.font = "600 24px system-ui, sans-serif";
  pen.fillText(title, 8, -16, WIDE - 16);
  pen.font = "20px system-ui, sans-serif";
  pen.fillText(text, 8, low + 36, WIDE - 16);
  canvas.toBlob((blob) => take(blob, "chart.png"));
};
const as_png = (chart, title, text) => button("PNG", () => save_picture(chart, title, text), { className: "link", "aria-label": `Save as PNG: ${title}` });
