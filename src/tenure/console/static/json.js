// JSON whose integers keep all digits: those above 2^53 are read as BigInt.

/** Read JSON. A browser that does not pass on the source text rounds large integers. */
export function parse(text) {
  return JSON.parse(text, (key, value, context) => {
    if (typeof value !== "number" || !Number.isInteger(value) || Number.isSafeInteger(value)) return value;
    return context && /^-?\d+$/.test(context.source) ? BigInt(context.source) : value;
  });
}

/** Return a value as indented JSON. Short lists and objects stay on one line. */
export function pretty(value, indent = "") {
  if (typeof value === "bigint") return String(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const [open, close] = list ? "[]" : "{}";
  const inner = indent + "  ";
  const items = list
    ? value.map((item) => pretty(item, inner))
    : Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${pretty(item, inner)}`);
  if (!items.length) return open + close;
  const line = `${open}${items.join(", ")}${close}`;
  if (line.length + indent.length <= 72 && !line.includes("\n")) return line;
  return `${open}\n${items.map((item) => inner + item).join(",\n")}\n${indent}${close}`;
}
