//! SVG charts in colours of the page's style sheet: light, dark or printed.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Cartesian2d, Circle, DrawingArea, IntoDrawingArea, PathElement, RGBColor, Rectangle,
    SVGBackend, Text, TextStyle,
};
use plotters::style::{Color, IntoFont, ShapeStyle};

use super::shape::Shape;

/// Title, caption and axes of a chart.
#[derive(Debug, Clone)]
pub(super) struct Chart<'a> {
    pub(super) title: Cow<'a, str>,
    /// One sentence on the content, and on how to read it.
    pub(super) caption: Cow<'a, str>,
    pub(super) x: Axis<'a>,
    pub(super) y: Axis<'a>,
}

/// One axis.
#[derive(Debug, Clone)]
pub(super) struct Axis<'a> {
    /// Label with its unit.
    pub(super) label: &'a str,
    pub(super) range: Range<f64>,
    /// Format of its numbers; an empty text hides a number.
    pub(super) format: fn(f64) -> String,
}

/// A colour of the style sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Text,
    Grid,
    /// Colour of slower values.
    Warm,
    /// Colour of faster values.
    Cool,
    /// One of a few distinct colours, also for the colour blind.
    Series(u8),
}

/// Area that shapes are drawn on.
pub(super) struct Canvas<'canvas, 'text> {
    context: ChartContext<'canvas, SVGBackend<'text>, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    x_range: Range<f64>,
    y_range: Range<f64>,
    font_size: f64,
    /// Invisible rectangles, each with the text that is shown when hovered.
    hovers: &'canvas mut String,
}

/// Panic message: drawing into a text cannot fail.
const DRAWN: &str = "a chart is drawn into memory";

impl Ink {
    /// Returns a colour that stands for this one until the text is written.
    fn placeholder(self) -> RGBColor {
        match self {
            Self::Text => RGBColor(1, 2, 3),
            Self::Grid => RGBColor(1, 2, 4),
            Self::Warm => RGBColor(1, 2, 5),
            Self::Cool => RGBColor(1, 2, 6),
            Self::Series(number) => RGBColor(2, 3, number % SERIES),
        }
    }

    pub(super) fn variable(self) -> String {
        match self {
            Self::Text => "var(--text)".to_owned(),
            Self::Grid => "var(--grid)".to_owned(),
            Self::Warm => "var(--warm)".to_owned(),
            Self::Cool => "var(--cool)".to_owned(),
            Self::Series(number) => format!("var(--series-{})", number % SERIES),
        }
    }
}

/// Number of different colours.
const SERIES: u8 = 8;

/// Draws a chart in a shape, as SVG.
pub(super) fn svg(chart: &Chart<'_>, shape: Shape, draw: &dyn Fn(&mut Canvas<'_, '_>)) -> String {
    let mut svg = String::new();
    let mut hovers = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, shape.size()).into_drawing_area();
        draw_on(&area, chart, shape, &mut hovers, draw);
        area.present().expect(DRAWN);
    }
    styled(&svg, &hovers, shape, &super::escape(&chart.title))
}

fn draw_on(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    chart: &Chart<'_>,
    shape: Shape,
    hovers: &mut String,
    draw: &dyn Fn(&mut Canvas<'_, '_>),
) {
    let Chart { x, y, .. } = chart;
    let (x_format, y_format) = (x.format, y.format);
    let label = || text_style(shape.font_size());
    let mut context = ChartBuilder::on(area)
        .margin(8)
        .margin_right(28)
        .x_label_area_size(44)
        .y_label_area_size(shape.y_label_size())
        .build_cartesian_2d(x.range.clone(), y.range.clone())
        .expect(DRAWN);
    context
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(Ink::Grid.placeholder())
        .light_line_style(Ink::Grid.placeholder().mix(0.0))
        .axis_style(Ink::Grid.placeholder())
        .x_desc(x.label)
        .y_desc(y.label)
        .x_labels(shape.x_labels())
        .y_labels(5)
        .x_label_formatter(&|value| x_format(*value))
        .y_label_formatter(&|value| y_format(*value))
        .label_style(label())
        .axis_desc_style(label())
        .draw()
        .expect(DRAWN);
    draw(&mut Canvas {
        context,
        x_range: x.range.clone(),
        y_range: y.range.clone(),
        font_size: shape.font_size(),
        hovers,
    });
}

fn text_style(size: f64) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&Ink::Text.placeholder())
}

impl Canvas<'_, '_> {
    /// Draws a line through points, with gaps at points that are not finite.
    pub(super) fn line(&mut self, points: &[(f64, f64)], ink: Ink) {
        let style = ShapeStyle::from(ink.placeholder()).stroke_width(2);
        for piece in points.split(|(x, y)| !x.is_finite() || !y.is_finite()) {
            if !piece.is_empty() {
                self.draw(PathElement::new(piece.to_vec(), style));
            }
        }
    }

    /// Draws a filled rectangle between two corners.
    pub(super) fn bar(&mut self, corners: [(f64, f64); 2], ink: Ink, opacity: f64) {
        self.draw(Rectangle::new(corners, ink.placeholder().mix(opacity).filled()));
    }

    /// Returns the height of a pixel in units of the vertical axis.
    pub(super) fn pixel_height(&self) -> f64 {
        let (_, pixels) = self.context.plotting_area().dim_in_pixel();
        (self.y_range.end - self.y_range.start) / f64::from(pixels.max(1))
    }

    /// Draws a dot at a point.
    pub(super) fn dot(&mut self, at: (f64, f64), ink: Ink) {
        self.draw(Circle::new(at, 4, ink.placeholder().filled()));
    }

    /// Draws a text that begins at a point.
    pub(super) fn text(&mut self, at: (f64, f64), text: String) {
        self.draw(Text::new(text, at, text_style(self.font_size)));
    }

    /// Shows a text while a pointer is between two corners.
    pub(super) fn hover(&mut self, corners: [(f64, f64); 2], text: &str) {
        let area = self.context.plotting_area();
        let [from, to] = corners.map(|corner| area.map_coordinate(&corner));
        let (left, top) = (from.0.min(to.0), from.1.min(to.1));
        let width = (from.0 - to.0).abs().max(1);
        let height = (from.1 - to.1).abs().max(1);
        let _ = write!(
            self.hovers,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\"><title>{}</title>\
             </rect>",
            super::escape(text)
        );
    }

    /// Shows a text while a pointer is above or below an interval of the horizontal axis.
    pub(super) fn hover_between(&mut self, interval: Range<f64>, text: &str) {
        let Range { start: bottom, end: top } = self.y_range;
        self.hover([(interval.start, bottom), (interval.end, top)], text);
    }

    /// Shows a text for each of several positions on the horizontal axis, whenever it is the
    /// nearest to the pointer.
    pub(super) fn hover_nearest(&mut self, texts: &[(f64, String)]) {
        for (index, (at, text)) in texts.iter().enumerate() {
            let between = |other: &(f64, String)| f64::midpoint(other.0, *at);
            let previous = index.checked_sub(1).map(|index| between(&texts[index]));
            let next = texts.get(index + 1).map(between);
            let start = previous.unwrap_or(self.x_range.start);
            let end = next.unwrap_or(self.x_range.end);
            self.hover_between(start..end, text);
        }
    }

    fn draw<E>(&mut self, element: E)
    where
        for<'element> &'element E: plotters::element::PointCollection<'element, (f64, f64)>,
        E: for<'text> plotters::element::Drawable<SVGBackend<'text>>,
    {
        self.context.plotting_area().draw(&element).expect(DRAWN);
    }
}

/// Applies the style sheet's colours to the drawn text, and scales it to the page. Phones have no
/// pointer, so they get no hover texts.
fn styled(svg: &str, hovers: &str, shape: Shape, title: &str) -> String {
    let start = svg.find("<svg").unwrap_or(0);
    let begin = svg[start..].find('>').map_or(start, |end| start + end + 1);
    let end = svg.rfind("</svg>").unwrap_or(svg.len());
    let (width, height) = shape.size();
    let class = shape.class();
    let mut text = format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"{title}\">{}",
        &svg[begin..end]
    );
    let inks = [Ink::Text, Ink::Grid, Ink::Warm, Ink::Cool].into_iter();
    for ink in inks.chain((0..SERIES).map(Ink::Series)) {
        let RGBColor(red, green, blue) = ink.placeholder();
        text = text.replace(&format!("#{red:02X}{green:02X}{blue:02X}"), &ink.variable());
    }
    if !hovers.is_empty() && shape != Shape::Phone {
        let _ = write!(text, "<g class=\"hover\">{hovers}</g>");
    }
    text + "</svg>\n"
}
