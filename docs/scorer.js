// Order of the search results: Sphinx's own scores, adjusted by the kind of page.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, , , , score]) => score + (ORDER.find(([pattern]) => pattern.test(page)) ?? [null, 0])[1],
};
var ORDER = [
  [/^(install|guides\/notebook\/(first-cell|stop|respawn))$/, 4], // what most newcomers look for
  [/^migrating$/, 2], // it precedes pages that only mention Horovod
  [/^tutorials\//, -1], // a guide precedes the notebook that shows it
  [/^reference\/generated\/hvd_kernel\.torch\./, -1], // of equal names, torch's first
  [/^reference\//, -2], // a guide precedes the API of the same name
  [/^(architecture|changelog|contributing|extending|features|testing)$/, -3], // for those who change the code
];
