// The end of the module: anywidget calls its default export once for each model.

export default () => {
  /** @type {Widget} */
  let widget;
  const widgetOf = (/** @type {Model} */ model) => (widget ??= KINDS[model.get("kind")]());
  return {
    initialize: (/** @type {{ model: Model }} */ context) =>
      widgetOf(context.model).initialize(context),
    render: (/** @type {{ model: Model, el: HTMLElement }} */ context) =>
      widgetOf(context.model).render?.(context),
  };
};
