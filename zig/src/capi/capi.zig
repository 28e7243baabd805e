//! The capi room: velo.h made real. Checks arguments, picks a device, maps errors; no logic.
const base = @import("base");

comptime {
    _ = @import("errors.zig");
    _ = @import("filters.zig");
    _ = @import("build.zig");
    _ = @import("vectors.zig");
    _ = @import("open.zig");
    _ = @import("calibration.zig");
    _ = @import("filter_plan.zig");
    _ = @import("device.zig");
}

export fn velo_version() [*:0]const u8 {
    return "0.1.0";
}

export fn velo_cpu_level() [*:0]const u8 {
    return @tagName(base.cpu.current());
}

test {
    _ = @import("common.zig");
    _ = @import("errors.zig");
    _ = @import("filters.zig");
    _ = @import("tickets.zig");
}
