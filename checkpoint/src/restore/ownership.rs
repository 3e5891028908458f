//! Contradictions between the boxes of all ranks: each element of a tensor has one owner.
//!
//! Ranks may save the same box, as replicas. Boxes that differ must not overlap: from which of them
//! an element was read would depend on the reader, and ranks would restore different values.

use std::collections::HashSet;

use super::open_checkpoint::OpenCheckpoint;
use super::plan::{SavedBox, boxes_by_tensor};
use crate::error::Error;
use crate::format::index::index_file;
use crate::tensor::TensorBox;

/// Index that contradicts those of other ranks.
#[derive(Debug)]
pub(crate) struct Conflict {
    /// The saved rank whose index it is.
    pub(crate) rank: usize,
    pub(crate) error: Error,
}

impl OpenCheckpoint<'_> {
    /// Requires that the boxes of a tensor agree on its type and shape, do not overlap, and, where
    /// the indexes of all ranks are here, cover it.
    pub(crate) fn check_ownership(&self) -> Result<(), Conflict> {
        for mut boxes in boxes_by_tensor(&self.indexes, 0).into_values() {
            boxes.sort_by(|a, b| place(a).cmp(&place(b)));
            self.check_kind(&boxes)?;
            boxes.dedup_by(|a, b| place(a) == place(b)); // replicas
            self.check_overlap(&mut boxes)?;
            if self.indexes.len() == self.manifest.world {
                self.check_whole(&boxes)?;
            }
        }
        Ok(())
    }

    fn check_kind(&self, boxes: &[SavedBox<'_>]) -> Result<(), Conflict> {
        let TensorBox { name, dtype, shape, .. } = tensor(&boxes[0]);
        let differs =
            |saved: &&SavedBox<'_>| tensor(saved).dtype != *dtype || tensor(saved).shape != *shape;
        let Some(other) = boxes.iter().find(differs) else { return Ok(()) };
        let TensorBox { dtype: other_dtype, shape: other_shape, .. } = tensor(other);
        let expected = format!("{name} = {dtype:?} {shape:?}, as another box has it");
        Err(self.conflict(other, expected, format!("{other_dtype:?} {other_shape:?}")))
    }

    /// Checks boxes that differ: along an axis those that overlap one start before its end.
    fn check_overlap(&self, boxes: &mut [SavedBox<'_>]) -> Result<(), Conflict> {
        let Some(axis) = most_divided_axis(boxes) else { return Ok(()) };
        let start = |saved: &SavedBox<'_>| tensor(saved).offset[axis];
        boxes.sort_by_key(start);
        for (number, saved) in boxes.iter().enumerate() {
            let region = tensor(saved).region();
            let end = start(saved) + tensor(saved).extent[axis];
            let mut near = boxes[number + 1..].iter().take_while(|other| start(other) < end);
            if let Some(other) =
                near.find(|other| region.intersect(&tensor(other).region()).is_some())
            {
                let TensorBox { name, .. } = tensor(other);
                let owner = self.indexes[saved.rank].rank;
                let expected = format!("no box of {name} over that of rank {owner}");
                return Err(self.conflict(other, expected, tensor(other)));
            }
        }
        Ok(())
    }

    /// Checks that boxes, which do not overlap, cover the tensor.
    fn check_whole(&self, boxes: &[SavedBox<'_>]) -> Result<(), Conflict> {
        let TensorBox { name, shape, .. } = tensor(&boxes[0]);
        let found: usize = boxes.iter().map(|saved| tensor(saved).elements()).sum();
        let elements: usize = shape.iter().product();
        if found == elements {
            return Ok(());
        }
        let expected = format!("{elements} elements of {name} in the boxes of all ranks");
        Err(self.conflict(&boxes[0], expected, found))
    }

    fn conflict(&self, saved: &SavedBox<'_>, expected: String, found: impl ToString) -> Conflict {
        let rank = self.indexes[saved.rank].rank;
        let key = self.manifest.rank_key(self.name, rank, &index_file(rank));
        let error = Error::damaged(&self.store.tier().path(&key), 0, expected, found);
        Conflict { rank, error }
    }
}

fn tensor<'a>(saved: &SavedBox<'a>) -> &'a TensorBox {
    &saved.entry.tensor
}

fn place<'a>(saved: &SavedBox<'a>) -> [&'a Vec<usize>; 2] {
    [&tensor(saved).offset, &tensor(saved).extent]
}

/// The axis along which most boxes start at different places, so that few are near each other; a
/// scalar has none.
fn most_divided_axis(boxes: &[SavedBox<'_>]) -> Option<usize> {
    let starts = |axis: usize| {
        let starts = boxes.iter().map(|saved| tensor(saved).offset[axis]);
        starts.collect::<HashSet<_>>().len()
    };
    (0..tensor(boxes.first()?).shape.len()).max_by_key(|&axis| starts(axis))
}
