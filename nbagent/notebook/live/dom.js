// Nodes from texts: createElement and textContent only, so that text stays text.

/** @typedef {import("./shapes.js").MdNode} MdNode */
/** @typedef {import("./shapes.js").Picture} Picture */

const TAGS = new Set(("p h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong s a " +
  "table thead tbody tr th td hr br").split(" "));
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;

/** @param {string} tag @param {string} name class @param {(Node | string | null)[]} children */
export function h(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  for (const child of children) if (child) node.append(child);
  return node;
}

/** @param {Node} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {HTMLElement} node @param {Record<string, string>} attributes */
export function setAll(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  return node;
}

/** Keep the height of a node while it changes, so that what stands below it does not move.
 * @param {HTMLElement} node @param {unknown} kept */
export function keepHeight(node, kept) {
  node.style.height = kept ? `${node.getBoundingClientRect().height}px` : "";
}

/** Whether a node stands below another. @param {Node} node @param {Node} other */
export function isBelow(node, other) {
  // 4: DOCUMENT_POSITION_FOLLOWING.
  return other.compareDocumentPosition(node) & 4;
}

/** The nodes of a Markdown tree; tags and addresses are checked once more.
 * @param {MdNode[]} tree @param {(code: HTMLElement) => HTMLElement} around what surrounds a listing
 * @returns {Node[]} */
export function markdown(tree, around) {
  return tree.map((item) => {
    if (typeof item === "string") return document.createTextNode(item);
    const [tag, attributes, children] = item;
    const node = document.createElement(TAGS.has(tag) ? tag : "span");
    if (tag === "a" && /^(https?|mailto):/i.test(attributes.href ?? "")) {
      node.setAttribute("href", attributes.href);
      node.setAttribute("target", "_blank");
      node.setAttribute("rel", "noopener noreferrer nofollow");
    }
    if (tag === "ol" && attributes.start) node.setAttribute("start", String(attributes.start));
    if (attributes.align) node.setAttribute("align", attributes.align);
    node.append(...markdown(children, around));
    return tag === "pre" ? around(node) : node;
  });
}

/** Pictures with their words: never an address, never SVG. @param {Picture[]} images */
export function pictures(images) {
  return images
    .filter((image) => /^image\/(png|jpeg|gif|webp)$/.test(image.media_type) && BASE64.test(image.data))
    .flatMap((image) => {
      const node = document.createElement("img");
      node.alt = image.alt;
      node.src = `data:${image.media_type};base64,${image.data}`;
      return [node, h("div", "nba-note", `${image.alt} · ${image.size}`)];
    });
}

/** The same pattern as `seconds` in visible.py. @param {number} ms */
export function seconds(ms) {
  if (ms >= 600000) return [`${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)}`, "s"];
  return [(ms / 1000).toFixed(ms < 99950 ? 1 : 0), "s"];
}
