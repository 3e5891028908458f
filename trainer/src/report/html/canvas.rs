//! Draws charts as SVG, in colours that the page's style sheet gives: light, dark or printed.

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

/// Width and height of every chart, in the units of its own coordinates.
const SIZE: (u32, u32) = (560, 280);

/// A chart in the making: what it shows, and its axes.
#[derive(Debug, Clone)]
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// One sentence: what is to be seen, and how to read it.
    pub(super) caption: &'a str,
    pub(super) x: Axis<'a>,
    pub(super) y: Axis<'a>,
}

/// One axis.
#[derive(Debug, Clone)]
pub(super) struct Axis<'a> {
    /// With its unit.
    pub(super) label: &'a str,
    pub(super) range: Range<f64>,
    /// Of its numbers; an empty text hides one.
    pub(super) format: fn(f64) -> String,
}

/// A colour of the style sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Text,
    Grid,
    /// One of a few that differ from each other, also for the colour blind.
    Series(u8),
}

/// What shapes are drawn on.
pub(super) struct Canvas<'canvas, 'text> {
    context: ChartContext<'canvas, SVGBackend<'text>, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
}

/// Drawing into a text cannot fail.
const DRAWN: &str = "a chart is drawn into memory";

impl Ink {
    /// A colour that stands for this one until the text is written.
    fn placeholder(self) -> RGBColor {
        match self {
            Self::Text => RGBColor(1, 2, 3),
            Self::Grid => RGBColor(1, 2, 4),
            Self::Series(number) => RGBColor(2, 3, number % SERIES),
        }
    }

    fn variable(self) -> String {
        match self {
            Self::Text => "var(--text)".to_owned(),
            Self::Grid => "var(--grid)".to_owned(),
            Self::Series(number) => format!("var(--series-{})", number % SERIES),
        }
    }
}

/// Number of different colours.
const SERIES: u8 = 8;

/// A whole figure: the chart, a legend of its series, and its caption.
pub(super) fn figure(
    chart: &Chart<'_>,
    legend: &[(&str, Ink)],
    draw: impl FnOnce(&mut Canvas<'_, '_>),
) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw_on(&area, chart, draw);
        area.present().expect(DRAWN);
    }
    let title = super::escape(chart.title);
    let mut text = format!("<figure><h3>{title}</h3>\n");
    if !legend.is_empty() {
        text.push_str("<p class=\"legend\">");
        for (name, ink) in legend {
            let (name, colour) = (super::escape(name), ink.variable());
            let _ = write!(text, "<span><i style=\"background:{colour}\"></i>{name}</span> ");
        }
        text.push_str("</p>\n");
    }
    text.push_str(&styled(&svg, &title));
    let _ = writeln!(text, "<figcaption>{}</figcaption></figure>", super::escape(chart.caption));
    text
}

fn draw_on(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    chart: &Chart<'_>,
    draw: impl FnOnce(&mut Canvas<'_, '_>),
) {
    let Chart { x, y, .. } = chart;
    let context = ChartBuilder::on(area)
        .margin(8)
        .margin_right(28)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(x.range.clone(), y.range.clone())
        .expect(DRAWN);
    let mut canvas = Canvas { context };
    let label = || text_style(15.0);
    let (x_format, y_format) = (x.format, y.format);
    canvas
        .context
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(Ink::Grid.placeholder())
        .light_line_style(Ink::Grid.placeholder().mix(0.0))
        .axis_style(Ink::Grid.placeholder())
        .x_desc(x.label)
        .y_desc(y.label)
        .x_labels(6)
        .y_labels(5)
        .x_label_formatter(&|value| x_format(*value))
        .y_label_formatter(&|value| y_format(*value))
        .label_style(label())
        .axis_desc_style(label())
        .draw()
        .expect(DRAWN);
    draw(&mut canvas);
}

fn text_style(size: f64) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&Ink::Text.placeholder())
}

impl Canvas<'_, '_> {
    /// A line through points, in pieces where one is not finite.
    pub(super) fn line(&mut self, points: &[(f64, f64)], ink: Ink) {
        let style = ShapeStyle::from(ink.placeholder()).stroke_width(2);
        for piece in points.split(|(x, y)| !x.is_finite() || !y.is_finite()) {
            if !piece.is_empty() {
                self.draw(PathElement::new(piece.to_vec(), style));
            }
        }
    }

    /// A filled rectangle between two corners.
    pub(super) fn bar(&mut self, corners: [(f64, f64); 2], ink: Ink, opacity: f64) {
        self.draw(Rectangle::new(corners, ink.placeholder().mix(opacity).filled()));
    }

    /// A dot at a point.
    pub(super) fn dot(&mut self, at: (f64, f64), ink: Ink) {
        self.draw(Circle::new(at, 4, ink.placeholder().filled()));
    }

    /// A text that begins at a point.
    pub(super) fn text(&mut self, at: (f64, f64), text: String) {
        self.draw(Text::new(text, at, text_style(15.0)));
    }

    fn draw<E>(&mut self, element: E)
    where
        for<'element> &'element E: plotters::element::PointCollection<'element, (f64, f64)>,
        E: for<'text> plotters::element::Drawable<SVGBackend<'text>>,
    {
        self.context.plotting_area().draw(&element).expect(DRAWN);
    }
}

/// The drawn text with the style sheet's colours, and as large as the page lets it be.
fn styled(svg: &str, title: &str) -> String {
    let start = svg.find("<svg").unwrap_or(0);
    let end = svg[start..].find('>').map_or(start, |end| start + end + 1);
    let (width, height) = SIZE;
    let head =
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">");
    let mut text = head + &svg[end..];
    let inks = (0..SERIES).map(Ink::Series).chain([Ink::Text, Ink::Grid]);
    for ink in inks {
        let RGBColor(red, green, blue) = ink.placeholder();
        text = text.replace(&format!("#{red:02X}{green:02X}{blue:02X}"), &ink.variable());
    }
    text
}
