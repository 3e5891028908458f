//! Chart with its legend and caption, and the arrangement of several charts.

use std::fmt::Write as _;

use super::canvas::{Canvas, Chart, Ink, svg};
use super::escape;
use super::shape::Shape;

/// Chart with its legend. It is drawn in several shapes, of which the style sheet shows one.
pub(super) struct Figure<'a> {
    chart: Chart<'a>,
    legend: String,
    is_wide: bool,
    draw: Box<dyn Fn(&mut Canvas<'_, '_>) + 'a>,
}

impl<'a> Figure<'a> {
    pub(super) fn new(chart: Chart<'a>, draw: impl Fn(&mut Canvas<'_, '_>) + 'a) -> Self {
        Self { chart, legend: String::new(), is_wide: false, draw: Box::new(draw) }
    }

    /// Adds a legend with the names of the series.
    pub(super) fn with_legend<S: AsRef<str>>(
        self,
        series: impl IntoIterator<Item = (S, Ink)>,
    ) -> Self {
        Self { legend: legend(series), ..self }
    }

    /// Adds a colour scale between two texts.
    pub(super) fn with_scale(self, cool: &str, warm: &str) -> Self {
        let (cool, warm) = (escape(cool), escape(warm));
        let legend = format!("<p class=\"legend\">{cool} <i class=\"scale\"></i> {warm}</p>\n");
        Self { legend, ..self }
    }

    /// Makes the figure as wide as the page.
    pub(super) fn wide(self) -> Self {
        Self { is_wide: true, ..self }
    }

    fn html(&self) -> String {
        let class = if self.is_wide { " class=\"wide\"" } else { "" };
        let title = escape(&self.chart.title);
        let mut text = format!("<figure{class}><h3>{title}</h3>\n{}", self.legend);
        let shapes: &[Shape] = if self.is_wide {
            &[Shape::Wide, Shape::Half, Shape::Phone]
        } else {
            &[Shape::Half, Shape::Phone]
        };
        for shape in shapes {
            text += &svg(&self.chart, *shape, &*self.draw);
        }
        let caption = escape(&self.chart.caption);
        let _ = writeln!(text, "<figcaption>{caption}</figcaption></figure>");
        text
    }
}

/// Formats names beside their colours.
pub(super) fn legend<S: AsRef<str>>(series: impl IntoIterator<Item = (S, Ink)>) -> String {
    let mut text = "<p class=\"legend\">".to_owned();
    for (name, ink) in series {
        let (name, colour) = (escape(name.as_ref()), ink.variable());
        let _ = write!(text, "<span><i style=\"background:{colour}\"></i>{name}</span> ");
    }
    text + "</p>\n"
}

/// Arranges figures in two columns. If their number is odd, the first is as wide as both columns,
/// so that none stands alone.
pub(super) fn arranged<'a>(figures: impl IntoIterator<Item = Figure<'a>>) -> String {
    let mut figures: Vec<Figure<'a>> = figures.into_iter().collect();
    let halves = figures.iter().filter(|figure| !figure.is_wide).count();
    if let Some(first) = figures.iter_mut().find(|figure| !figure.is_wide)
        && halves % 2 == 1
    {
        first.is_wide = true;
    }
    figures.iter().map(Figure::html).collect()
}
