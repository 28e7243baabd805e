//! velo_device_info of velo.h: which device, and why.
const std = @import("std");
const io = @import("io");
const common = @import("common.zig");
const numbers = @import("numbers.zig");
const search = @import("search");
const fail = common.fail;

pub const DeviceInfo = extern struct {
    struct_size: u32 = @sizeOf(DeviceInfo),
    io: i32 = 0,
    direct: i32 = 0,
    uring_errno: i32 = 0,
    direct_errno: i32 = 0,
    queue_depth: u32 = 0,
    name: [32]u8 = @splat(0),
    reason: [256]u8 = @splat(0),
    advice: [256]u8 = @splat(0),
};

/// Null where the probe has no say: the simulated device is chosen by its library.
pub fn wanted(asked: numbers.Io) ?io.probe.Wanted {
    return switch (asked) {
        .auto => .auto,
        .uring => .uring,
        .threads => .threads,
        .simulated => null,
    };
}

pub fn info_of(report: *const io.Report) DeviceInfo {
    var info: DeviceInfo = .{
        .io = @intFromEnum(if (report.kind == .uring) numbers.Io.uring else .threads),
        .direct = @intFromBool(report.direct),
        .uring_errno = report.uring_errno,
        .direct_errno = report.direct_errno,
        .queue_depth = report.queue_depth,
    };
    common.put_text(&info.name, report.name());
    common.put_text(&info.reason, report.reason.slice());
    common.put_text(&info.advice, report.advice.slice());
    return info;
}

pub fn simulated(queue_depth: u32) DeviceInfo {
    var info: DeviceInfo = .{ .io = @intFromEnum(numbers.Io.simulated), .direct = 0, .queue_depth = queue_depth };
    common.put_text(&info.name, "simulated");
    common.put_text(&info.reason, "This library was built for tests, with the simulated device.");
    return info;
}

export fn velo_device_probe(folder: ?[*:0]const u8, device: i32, info_out: ?*DeviceInfo) i32 {
    const path = folder orelse return common.null_argument("folder");
    const out = info_out orelse return common.null_argument("info_out");
    const asked = (if (std.enums.fromInt(numbers.Io, device)) |one| wanted(one) else null) orelse return fail(.invalid_argument, .{ .argument = "io" }, "io {d} cannot be probed", .{device});
    const report = io.probe.probe_folder(std.mem.span(path), asked, search.engine.queue_depth_default);
    const info = info_of(&report);
    common.write_versioned(DeviceInfo, out, &info);
    return common.ok;
}
