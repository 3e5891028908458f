//! The ops of an update: AdamW, rounding, and sums of squares. They have one interface for all
//! devices.

use device::{Device, DeviceBuffer, Element};
use half::bf16;

use super::device::cuda;
use crate::layout::ALIGN;
use crate::ops::adamw::AdamW;
use crate::ops::step::{self, ALL_FINITE, AdamWViews, Decays, StepOps, UpdatedViews};
use crate::rng::{Purpose, Stream};

/// Fewer than a pack of four, a rest behind packs, several blocks, and more than all blocks of a
/// sum of squares read at once.
const LENGTHS: [usize; 6] = [1, 4, 511, 4096, 70_003, 2 * 524_288 + 5];

fn devices() -> [Device; 2] {
    [Device::Host, Device::Cuda(cuda())]
}

fn numbers(len: usize, child: u64) -> Vec<f32> {
    let stream = Stream::new(3, Purpose::Test).child(child);
    (0..len as u64).map(|index| stream.normal(index) as f32).collect()
}

fn upload<E: Element>(device: &Device, elements: &[E]) -> DeviceBuffer<E> {
    let mut buffer = device.allocator().zeros(elements.len());
    device.write(buffer.view_mut(), elements).unwrap();
    buffer
}

fn download<E: Element>(device: &Device, buffer: &DeviceBuffer<E>) -> Vec<E> {
    let mut elements = vec![E::default(); buffer.len()];
    device.read(buffer.view(), &mut elements).unwrap();
    elements
}

/// Runs the same on the processor and on the device.
fn on_both<T>(run: impl Fn(&Device, &mut dyn StepOps) -> T) -> [T; 2] {
    devices().map(|device| run(&device, &mut *step::on(&device).unwrap()))
}

/// |found - exact| / |exact| in the Euclidean norm.
fn relative_error(found: &[f32], exact: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = found.iter().zip(exact).map(|(f, e)| square(f - e)).sum();
    (error / exact.iter().copied().map(square).sum::<f64>()).sqrt()
}

/// The parameters of a third step.
fn third_step(weight_decay: f64) -> AdamW {
    AdamW {
        learning_rate: 1e-2,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay,
        correction1: 1.0 - 0.9_f64.powi(3),
        correction2: 1.0 - 0.95_f64.powi(3),
        gradient_scale: 0.5,
    }
}

/// Results of AdamW.
struct Updated {
    /// Weights and both moments.
    state: [Vec<f32>; 3],
    working: Vec<bf16>,
}

fn update(device: &Device, ops: &dyn StepOps, len: usize, narrows: bool, adamw: &AdamW) -> Updated {
    let mut weights = upload(device, &numbers(len, 1));
    let mut working = upload(device, &vec![bf16::ZERO; len]);
    let gradients = upload(device, &numbers(len, 2));
    let mut exp_avg = upload(device, &numbers(len, 3));
    let squares: Vec<f32> = numbers(len, 4).iter().map(|x| x * x).collect();
    let mut exp_avg_sq = upload(device, &squares);
    let views = AdamWViews {
        weights: weights.view_mut(),
        working: narrows.then(|| working.view_mut()),
        gradients: gradients.view(),
        exp_avg: exp_avg.view_mut(),
        exp_avg_sq: exp_avg_sq.view_mut(),
    };
    // From the middle of a block on, of which the next decays.
    let first = 5 * ALIGN + 52;
    let decaying = |block: usize| u8::from(block.is_multiple_of(3));
    let blocks: Vec<u8> = (0..(first + len).div_ceil(ALIGN)).map(decaying).collect();
    let blocks = upload(device, &blocks);
    ops.adamw(views, Decays { blocks: blocks.view(), first }, adamw).unwrap();
    Updated {
        state: [&weights, &exp_avg, &exp_avg_sq].map(|buffer| download(device, buffer)),
        working: download(device, &working),
    }
}

#[test]
fn adamw_updates_as_the_processor_does() {
    let adamw = third_step(10.0);
    for len in LENGTHS {
        for narrows in [false, true] {
            let [exact, found] = on_both(|device, ops| update(device, ops, len, narrows, &adamw));
            for (found, exact) in found.state.iter().zip(&exact.state) {
                let error = relative_error(found, exact);
                assert!(error < 1e-6, "{len} elements: {error:e}");
            }
            let expected: Vec<bf16> = if narrows {
                found.state[0].iter().map(|&weight| bf16::from_f32(weight)).collect()
            } else {
                vec![bf16::ZERO; len]
            };
            assert_eq!(found.working, expected, "{len} elements, narrowed: {narrows}");
        }
    }
}

#[test]
fn narrowing_rounds_and_copying_copies() {
    for len in LENGTHS {
        let [exact, found] = on_both(|device, ops| {
            let weights = upload(device, &numbers(len, 5));
            let mut copy = device.allocator().zeros(len);
            ops.copy(copy.view_mut(), weights.view()).unwrap();
            let mut working = device.allocator().zeros::<bf16>(len);
            ops.narrow(working.view_mut(), copy.view()).unwrap();
            (download(device, &copy), download(device, &working))
        });
        assert_eq!(found, exact, "{len} elements");
    }
}

#[test]
fn gradients_are_added_and_cleared() {
    for len in LENGTHS {
        let [exact, found] = on_both(|device, ops| {
            let mut sums = upload(device, &numbers(len, 11));
            let x = upload(device, &numbers(len, 12));
            ops.add_gradients(sums.view_mut(), x.view()).unwrap();
            let added = download(device, &sums);
            ops.clear_gradients(sums.view_mut()).unwrap();
            (added, download(device, &sums))
        });
        assert_eq!(found, exact, "{len} elements");
        assert_eq!(found.1, vec![0.0; len]);
    }
}

#[test]
fn sums_are_added_in_both_formats_and_clearing_forgets_them() {
    for len in LENGTHS {
        let [exact, found] = on_both(|device, ops| {
            let x = upload(device, &numbers(len, 6));
            let narrow: Vec<bf16> = numbers(len, 6).into_iter().map(bf16::from_f32).collect();
            let narrow = upload(device, &narrow);
            let mut sums = upload(device, &[f64::NAN; 4]);
            ops.clear(sums.view_mut()).unwrap();
            for _ in 0..2 {
                let (wide_sums, narrow_sums) = sums.view_mut().split_at(2);
                ops.add_sums(wide_sums, x.view().into(), 12_345).unwrap();
                ops.add_sums(narrow_sums, narrow.view().into(), 12_345).unwrap();
            }
            download(device, &sums)
        });
        for (format, [weighted, squares]) in [("f32", [0, 1]), ("bf16", [2, 3])] {
            let what = format!("{len} elements, {format}: {found:?} {exact:?}");
            let error = (found[weighted] - exact[weighted]).abs();
            assert!(error <= 1e-12 * exact[squares].max(1.0), "{what}");
            assert!((found[squares] / exact[squares] - 1.0).abs() < 1e-12, "{what}");
        }
    }
}

#[test]
fn squares_of_weights_and_of_their_update_are_added() {
    for len in LENGTHS {
        for weight_decay in [0.0, 0.1, 50.0] {
            let adamw = third_step(weight_decay);
            let [exact, found] = on_both(|device, ops| {
                let weights = upload(device, &numbers(len, 8));
                let exp_avg = upload(device, &numbers(len, 9));
                let squares: Vec<f32> = numbers(len, 10).iter().map(|x| x * x).collect();
                let exp_avg_sq = upload(device, &squares);
                let views = UpdatedViews {
                    weights: weights.view(),
                    exp_avg: exp_avg.view(),
                    exp_avg_sq: exp_avg_sq.view(),
                };
                let mut sums = device.allocator().zeros(2);
                for _ in 0..2 {
                    ops.add_update_squares(sums.view_mut(), views, &adamw).unwrap();
                }
                download(device, &sums)
            });
            let what = format!("{len} elements, decay {weight_decay}: {found:?} {exact:?}");
            assert!((found[0] / exact[0] - 1.0).abs() < 1e-12, "{what}");
            // The device contracts products with sums in f32 as it likes.
            assert!((found[1] / exact[1] - 1.0).abs() < 1e-5, "{what}");
        }
    }
}

#[test]
fn the_first_element_that_is_not_finite_is_found() {
    for len in LENGTHS {
        let places = [None, Some(0), Some(len / 2), Some(len - 1)];
        for place in places {
            let found = on_both(|device, ops| {
                let mut numbers = numbers(len, 7);
                if let Some(place) = place {
                    numbers[place] = f32::INFINITY;
                    numbers[len - 1] = f32::NAN;
                }
                let x = upload(device, &numbers);
                let mut first = upload(device, &[0_u64]);
                ops.clear_search(first.view_mut()).unwrap();
                let finite = upload(device, &[1.0]);
                for x in [&x, &finite] {
                    ops.first_non_finite(first.view_mut(), x.view()).unwrap();
                }
                let mut sums = device.allocator().zeros(2);
                ops.add_sums(sums.view_mut(), x.view().into(), 0).unwrap();
                assert_eq!(download(device, &sums)[1].is_finite(), place.is_none());
                download(device, &first)[0]
            });
            let expected = place.map_or(ALL_FINITE, |place| place as u64);
            assert_eq!(found, [expected; 2], "{len} elements, {place:?}");
        }
    }
}
