//! The sim room: a world that a seed decides. Never in the shipped library.
pub const SimulatedDevice = @import("device.zig").SimulatedDevice;
/// The name by which capi chooses it.
pub const Device = SimulatedDevice;
pub const faults = @import("device.zig");
pub const Fault = faults.Fault;

test {
    _ = @import("device.zig");
    _ = faults;
    _ = @import("search_test.zig");
    _ = @import("every_test.zig");
    _ = @import("fault_test.zig");
    _ = @import("segments_test.zig");
    _ = @import("offload_test.zig");
    _ = @import("store.zig");
    _ = @import("live_test.zig");
}
