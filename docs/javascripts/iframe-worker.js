// Browsers start no workers for pages that are opened as files. Then the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = (this.inside = frame.contentWindow);
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.src = source;
          script.onload = resolve;
          script.onerror = reject;
          inside.document.body.append(script);
        });
      inside.importScripts = (...sources) => sources.reduce((done, next) => done.then(() => load(next)), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(new URL(url, document.baseURI).href);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
