//! Buffers that every block and the head reuse.

use device::{Allocator, DeviceBuffer, ViewMut};

use super::size::Size;
use crate::ops::Element;

/// Buffers that hold their content for less than one block's forward or backward.
#[derive(Debug)]
pub(super) struct Scratch<E: Element> {
    /// (N, C): output of the final norm, and of every norm whose output is not saved.
    pub(super) normed: DeviceBuffer<E>,
    /// (N, C): gradient of a norm's output.
    pub(super) branch: DeviceBuffer<E>,
    /// (N, C): gradient of the stream.
    pub(super) gradient: DeviceBuffer<E>,
    /// (N, F): output of the activation; empty where outputs are saved.
    pub(super) hidden: DeviceBuffer<E>,
    /// (N, max((H + 2 K) D, F)): gradient of qkv, or of the feed-forward layer.
    pub(super) wide: DeviceBuffer<E>,
    /// Loss of an evaluation, one element.
    pub(super) loss: DeviceBuffer<f64>,
}

impl<E: Element> Scratch<E> {
    pub(super) fn new(allocator: &Allocator, size: &Size) -> Self {
        let allocator = allocator.for_purpose(SHARED);
        let rows = |columns| allocator.zeros(size.rows * columns);
        Self {
            normed: rows(size.width),
            branch: rows(size.width),
            gradient: rows(size.width),
            hidden: rows(if size.saves_outputs { 0 } else { size.feed_forward }),
            wide: rows(size.wide()),
            loss: allocator.zeros(1),
        }
    }
}

/// Purpose of this memory, and of the workspaces of ops that all blocks use.
pub(super) const SHARED: &str = "shared by all blocks";

/// The place of an output: its own where it is saved, else that of all blocks.
pub(super) fn place<'a, E: Element>(
    saved: &'a mut Option<ViewMut<'_, E>>,
    shared: &'a mut DeviceBuffer<E>,
) -> ViewMut<'a, E> {
    match saved {
        Some(saved) => saved.reborrow(),
        None => shared.view_mut(),
    }
}
