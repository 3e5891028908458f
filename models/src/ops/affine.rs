//! Weight and bias of a norm or a linear layer.

use device::{Element, View, ViewMut};

/// Weight and, where the family has one, bias.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Affine<'a, T: Element> {
    pub(crate) weight: View<'a, T>,
    pub(crate) bias: Option<View<'a, T>>,
}

/// The same, to be written.
#[derive(Debug)]
pub(crate) struct AffineMut<'a, T: Element> {
    pub(crate) weight: ViewMut<'a, T>,
    pub(crate) bias: Option<ViewMut<'a, T>>,
}
