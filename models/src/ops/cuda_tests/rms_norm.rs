//! RMSNorm: forward, forward again from statistics, and backward with the sums over rows.

use device::Allocator;
use half::bf16;

use super::device::{Bound, Memory, Numbers};
use crate::ops::kernels::CudaElement;
use crate::ops::norm::{NormBackward, NormSaved, NormShape};
use crate::ops::rms_norm;
use crate::ops::rms_norm::cuda::RmsNorm;
use crate::ops::row_sums::RowSums;
use crate::ops::row_sums::cuda::{ColumnSums, Partials, parts};

/// N and C: one pack, rows that fill no block, several parts, and more columns than one pass of
/// backward has.
const SHAPES: [(usize, usize); 6] = [(1, 8), (5, 24), (33, 120), (70, 776), (9, 4104), (3, 8200)];
/// Large enough to matter.
const EPSILON: f64 = 1e-2;

/// Everything a norm reads, and what it is added to.
struct Case<E> {
    shape: NormShape,
    x: Numbers<E>,
    dy: Numbers<E>,
    dx_before: Numbers<E>,
    weight: Numbers<E>,
}

impl<E: CudaElement> Case<E> {
    fn new((rows, width): (usize, usize)) -> Self {
        let matrix = |seed| Numbers::uniform(rows * width, seed, 2.0);
        Self {
            shape: NormShape { rows, width },
            x: matrix(1),
            dy: matrix(2),
            dx_before: matrix(3),
            weight: Numbers::uniform(width, 4, 1.0),
        }
    }

    /// Output and statistics.
    fn forward(&self) -> (Vec<f64>, Vec<f64>) {
        let mut y = vec![0.0; self.x.exact.len()];
        let mut stats = vec![0.0; self.shape.rows];
        rms_norm::forward(&mut y, &mut stats, &self.x.exact, &self.weight.exact, EPSILON);
        (y, stats)
    }

    /// The gradients of x, added to what it was before or not, and of the weight.
    fn backward(&self, stats: &[f64], accumulate: bool) -> [Vec<f64>; 2] {
        let NormShape { rows, width } = self.shape;
        let mut dx = self.dx_before.exact.clone();
        if !accumulate {
            dx.fill(0.0);
        }
        let mut dweight = vec![0.0; width];
        let mut sums = RowSums::new(&Allocator::host(), rows, width);
        let saved = (stats, self.x.exact.as_slice());
        let weight = &self.weight.exact;
        rms_norm::backward(&mut dx, &mut dweight, &self.dy.exact, saved, weight, &mut sums);
        [dx, dweight]
    }
}

fn forward_agrees<E: CudaElement>() {
    const BOUND: Bound = Bound::rounded_once(3e-6);
    const STATS: Bound = Bound::wide(1e-6);
    let memory = Memory::new();
    let norm = RmsNorm::new::<E>(memory.device(), EPSILON).unwrap();
    for shape in SHAPES {
        let case = Case::<E>::new(shape);
        let (exact, exact_stats) = case.forward();
        let x = memory.upload(&case.x.elements);
        let weight = memory.upload(&case.weight.elements);
        let weight = weight.view();
        let mut y = memory.unwritten::<E>(x.len());
        let mut stats = memory.unwritten(case.shape.rows);
        norm.forward(y.view_mut(), stats.view_mut(), x.view(), weight, case.shape).unwrap();
        BOUND.check(&format!("{shape:?}"), &memory.download(&y), &exact);
        let what = format!("statistics of {shape:?}");
        STATS.check_wide::<E>(&what, &memory.download(&stats), &exact_stats);

        let mut again = memory.unwritten::<E>(x.len());
        norm.apply(again.view_mut(), stats.view(), x.view(), weight, case.shape).unwrap();
        BOUND.check(&format!("{shape:?} from statistics"), &memory.download(&again), &exact);
    }
}

/// What the device computed in backward.
struct Gradient<E> {
    dx: Vec<E>,
    dweight: Vec<f32>,
}

fn gradient_on_device<E: CudaElement>(
    case: &Case<E>,
    stats: &[f64],
    accumulate: bool,
) -> Gradient<E> {
    let memory = Memory::new();
    let norm = RmsNorm::new::<E>(memory.device(), EPSILON).unwrap();
    let column_sums = ColumnSums::new::<E>(memory.device()).unwrap();
    let stats: Vec<f32> = stats.iter().map(|&value| value as f32).collect();
    let stats = memory.upload(&stats);
    let [x, dy, weight] =
        [&case.x, &case.dy, &case.weight].map(|numbers| memory.upload(&numbers.elements));
    let mut dx = memory.before(&case.dx_before.elements, accumulate);
    let NormShape { rows, width } = case.shape;
    let mut partials = Partials::new(memory.allocator(), rows, width);
    let operands = NormBackward {
        dx: dx.view_mut(),
        accumulate,
        dy: dy.view(),
        saved: NormSaved { input: x.view(), stats: stats.view() },
        weight: weight.view(),
    };
    norm.backward(operands, &mut partials, case.shape).unwrap();
    let count = parts(rows);
    let (first, _) = partials.two(count, width);
    let mut sums = memory.unwritten(width);
    column_sums.add_up(sums.view_mut(), first.as_view(), false).unwrap();
    Gradient { dx: memory.download(&dx), dweight: memory.download(&sums) }
}

fn backward_agrees<E: CudaElement>() {
    const BOUND: Bound = Bound::rounded_once(5e-6);
    const SUMS: Bound = Bound::wide(5e-6);
    for shape in SHAPES {
        let case = Case::<E>::new(shape);
        let (_, stats) = case.forward();
        for accumulate in [true, false] {
            let what = |gradient| format!("{gradient} of {shape:?}, added: {accumulate}");
            let [dx, dweight] = case.backward(&stats, accumulate);
            let found = gradient_on_device(&case, &stats, accumulate);
            BOUND.check(&what("dx"), &found.dx, &dx);
            SUMS.check_wide::<E>(&what("dweight"), &found.dweight, &dweight);
        }
    }
}

#[test]
fn forward() {
    forward_agrees::<f32>();
    forward_agrees::<bf16>();
}

#[test]
fn backward() {
    backward_agrees::<f32>();
    backward_agrees::<bf16>();
}
