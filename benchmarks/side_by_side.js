/* Draws the bars of several series side by side where the x axis has categories, as asv's graphs have with the shape as their x axis.

   asv asks a CDN for a plugin of flot's that takes the axis's width from the difference of its first and last label: with labels that
   are words that is no number, and all series but the middle one vanish. Here a bar's shift is counted in bar widths alone. */
(function ($) {
    function init(plot) {
        plot.hooks.processDatapoints.push(function (plot, series, datapoints) {
            if (!series.bars || !series.bars.show || series.bars.order == null) return;
            var orders = [];
            $.each(plot.getData(), function (_, other) {
                if (other.bars && other.bars.show && other.bars.order != null && orders.indexOf(other.bars.order) < 0) {
                    orders.push(other.bars.order);
                }
            });
            orders.sort(function (a, b) { return a - b; });
            var shift = (orders.indexOf(series.bars.order) - (orders.length - 1) / 2) * series.bars.barWidth;
            for (var i = 0; i < datapoints.points.length; i += datapoints.pointsize) datapoints.points[i] += shift;
        });
    }

    $.plot.plugins.push({ init: init, options: { series: { bars: { order: null } } }, name: "sideBySide", version: "1" });
})(jQuery);
