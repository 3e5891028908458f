//! Borrowed ranges of buffers.

use std::ops::Range;

use crate::{Element, Place};

/// Elements in some place, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, E: Element> {
    host: &'a [E],
}

/// Elements in some place, borrowed to be written.
#[derive(Debug)]
pub struct ViewMut<'a, E: Element> {
    host: &'a mut [E],
}

impl<'a, E: Element> View<'a, E> {
    /// Length in elements.
    pub fn len(self) -> usize {
        self.host.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.host.is_empty()
    }

    /// Where the elements are.
    pub fn place(self) -> Place {
        Place::Host
    }

    /// The elements, which are in the host's memory.
    pub fn host(self) -> &'a [E] {
        self.host
    }

    /// Some of the elements.
    ///
    /// # Panics
    /// When the range does not lie inside.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        Self { host: &self.host[range] }
    }
}

impl<'a, E: Element> ViewMut<'a, E> {
    /// Length in elements.
    pub fn len(&self) -> usize {
        self.host.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.host.is_empty()
    }

    /// Where the elements are.
    pub fn place(&self) -> Place {
        Place::Host
    }

    /// The elements, which are in the host's memory.
    pub fn host(self) -> &'a mut [E] {
        self.host
    }

    /// The same elements for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_, E> {
        ViewMut { host: self.host }
    }

    /// Some of the elements.
    ///
    /// # Panics
    /// When the range does not lie inside.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        Self { host: &mut self.host[range] }
    }

    /// The elements before `middle`, and the rest.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let (before, after) = self.host.split_at_mut(middle);
        (Self { host: before }, Self { host: after })
    }
}

impl<E: Element> Default for ViewMut<'_, E> {
    fn default() -> Self {
        Self { host: &mut [] }
    }
}

impl<'a, E: Element> From<&'a [E]> for View<'a, E> {
    fn from(host: &'a [E]) -> Self {
        Self { host }
    }
}

impl<'a, E: Element> From<&'a mut [E]> for ViewMut<'a, E> {
    fn from(host: &'a mut [E]) -> Self {
        Self { host }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ranges_are_those_of_the_buffer() {
        let mut numbers = [0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0];
        let view: View<'_, f32> = numbers.as_slice().into();
        assert_eq!(view.slice(1..5).slice(1..3).host(), [2.0, 3.0]);
        let mut view: ViewMut<'_, f32> = numbers.as_mut_slice().into();
        view.reborrow().slice(4..6).host().fill(9.0);
        let (before, after) = view.split_at(2);
        assert_eq!((before.len(), after.host()), (2, &mut [2.0, 3.0, 9.0, 9.0][..]));
    }
}
