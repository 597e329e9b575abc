/** Colours of the ranks, the same as in the picture (widgets/picture.py), and of the front end's theme. */

/** A palette that colour-blind users can distinguish, on light and dark backgrounds (tests/unit/widgets/test_colours.py). */
const FEW = ["#1d6aae", "#ca8502", "#ba0c7f", "#6e8dfb", "#895e0d", "#a089a8", "#890cf7", "#e7235b"];

/**
 * Return a rank's colour: from a small palette, or from a ramp for many ranks.
 *
 * @param {number} index
 * @param {number} count the number of ranks
 */
export function rankColour(index, count) {
  if (count <= FEW.length) return FEW[index];
  return `hsl(${Math.round(265 - (120 * index) / (count - 1))} 48% ${index % 2 ? 60 : 52}%)`;
}

/** @type {Record<string, string>} */
const MARKS = { died: "#d1555b", joined: "#2f9e78", left: "#7d8590", lost: "#b97c12", "not finite": "#d1555b" };

/**
 * Return the colour of a kind of mark, the same as in the picture.
 *
 * @param {string} kind
 */
export const markColour = (kind) => MARKS[kind] ?? MARKS.left;

/** @typedef {Record<"soft" | "grid" | "ink" | "paper" | "font", string>} Theme colours and font for a canvas, which has no style sheet */

const NAMES = ["soft", "grid", "ink", "paper", "compute", "wait", "negotiate", "late", "queue", "transfer"];

/**
 * Return the colours of the theme by their names in the style sheet, and the font; a canvas cannot resolve variables.
 *
 * @param {Element} root
 * @returns {Theme & Record<string, string>}
 */
export function readTheme(root) {
  const style = getComputedStyle(root);
  const probe = document.createElement("i");
  probe.style.setProperty("forced-color-adjust", "none"); // else all of them become the system's text colour
  root.append(probe);
  const colours = NAMES.map((name) => {
    probe.style.color = `var(--hvd-${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return { ...Object.fromEntries(colours), font: `11px ${style.fontFamily}` };
}
