//! The GPU room: kernels over codes and links in device memory, the structs that they take, and NVIDIA's driver, loaded at run
//! time.
pub const layout = @import("layout.zig");
pub const prepare = @import("prepare.zig");
/// A GPU that walks for a build.
pub const linker = @import("linker.zig");
pub const Linker = linker.Linker;
/// Kernels on the host.
pub const host = @import("host.zig");
pub const driver = @import("driver.zig");
/// A driver without a GPU, for tests and for the library with simulated devices.
pub const fake = @import("fake.zig");

/// The kernels as text, which the driver compiles for its card.
pub const ptx: [:0]const u8 = @embedFile("kernels.ptx");
/// The kernel of searches; `linker.kernel_name` is that of builds.
pub const search_kernel_name = "velo_search";

test "embedded kernels keep nothing in local memory" {
    const std = @import("std");
    try std.testing.expect(std.mem.indexOf(u8, ptx, ".target sm_80") != null);
    inline for (.{ "velo_search", "velo_insert" }) |name| try std.testing.expect(std.mem.indexOf(u8, ptx, ".visible .entry " ++ name ++ "(") != null);
    try std.testing.expect(std.mem.indexOf(u8, ptx, ".local") == null);
    try std.testing.expect(std.mem.indexOf(u8, ptx, "call") == null);
    // Two fifths of the library's part for GPUs (docs/decisions/0025).
    try std.testing.expect(ptx.len < 75_000);
}

test {
    _ = layout;
    _ = driver;
    _ = fake;
    _ = @import("kernels_test.zig");
}
