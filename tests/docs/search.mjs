// Answers queries as the site's search page does, by its own scripts: node search.mjs HTML_FOLDER, queries as JSON on stdin.
// Prints, for each query, the names of the pages that are found, the best first.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const folder = process.argv[2];
const context = vm.createContext({
  document: { getElementById: () => null, addEventListener: () => {} },
  _ready: () => {},
  _: (text) => text, // doctools.js translates
  SPHINX_HIGHLIGHT_ENABLED: false,
});
context.window = context;
for (const file of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"]) {
  vm.runInContext(readFileSync(`${folder}/${file}`, "utf8"), context, { filename: file });
}
const search = vm.runInContext("(query) => Search._performSearch(...Search._parseQuery(query))", context);
const pages = JSON.parse(readFileSync(0, "utf8")).map((query) => [
  ...new Set(search(query).reverse().map(([page]) => page)),
]);
process.stdout.write(JSON.stringify(pages));
