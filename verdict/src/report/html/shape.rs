//! Shapes of charts: as wide as the page, half of it, or as a phone.

/// Shape with suitable sizes. The style sheet shows the shape that fits the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Full width of the page.
    Wide,
    /// One of two side by side, or as wide as a narrow page.
    Half,
    /// Width of a phone.
    Phone,
}

impl Shape {
    /// Width and height of its coordinates.
    pub(super) fn size(self) -> (u32, u32) {
        match self {
            Self::Wide => (1140, 300),
            Self::Half => (560, 280),
            Self::Phone => (320, 240),
        }
    }

    /// Font size of all texts, in its coordinates: at least 11 pixels on screens of 360 pixels. A
    /// font is drawn smaller than its nominal size by a factor of 1.24.
    pub(super) fn font_size(self) -> f64 {
        match self {
            Self::Wide | Self::Half => 16.5,
            Self::Phone => 15.5,
        }
    }

    /// Width of the numbers and of the label of the vertical axis.
    pub(super) fn y_label_size(self) -> u32 {
        match self {
            Self::Wide | Self::Half => 90,
            Self::Phone => 88,
        }
    }

    /// Approximate number of labels of the horizontal axis.
    pub(super) fn x_labels(self) -> usize {
        match self {
            Self::Wide => 12,
            Self::Half => 6,
            Self::Phone => 3,
        }
    }

    /// Class name in the style sheet.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Wide => "is-wide",
            Self::Half => "is-half",
            Self::Phone => "is-phone",
        }
    }
}
