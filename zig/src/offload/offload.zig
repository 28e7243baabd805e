//! The offload room: segments in the memory of a GPU, and calls of many queries that it navigates for. Its tests are in the room
//! sim.
pub const Resident = @import("resident.zig").Resident;
const navigator = @import("navigator.zig");
pub const Navigator = navigator.Navigator;
pub const Options = navigator.Options;
pub const Workers = navigator.Workers;
pub const Counts = navigator.Counts;
pub const queries_least_of = navigator.queries_least_of;
pub const slot_bytes_max = navigator.slot_bytes_max;
pub const batch_size = navigator.batch_size;
