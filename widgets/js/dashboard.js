/**
 * Entry of the dashboard's widget: anywidget calls `initialize` once per model and `render` once per view.
 *
 * `make page` builds this and the modules beside it into widgets/static/dashboard.js, the only file that a browser loads.
 */

import { makePanel } from "./panel.js";
import { makeStore } from "./store.js";

/** @import {Model, Store} from "./store.js" */

export default () => {
  /** @type {Store} */
  let store;
  return {
    /** @param {{ model: Model }} widget */
    initialize({ model }) {
      const life = new AbortController();
      store = makeStore(model, life.signal);
      return () => life.abort();
    },
    /** @param {{ el: HTMLElement }} view */
    render({ el }) {
      const life = new AbortController();
      makePanel(store, el, life.signal);
      return () => life.abort();
    },
  };
};
