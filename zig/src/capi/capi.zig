//! The capi room: velo.h made real. Checks arguments, picks a device, maps errors; no logic.
const builtin = @import("builtin");
const base = @import("base");
const std = @import("std");

comptime {
    _ = @import("errors.zig");
    _ = @import("filters.zig");
    _ = @import("build.zig");
    _ = @import("info.zig");
    _ = @import("open.zig");
    _ = @import("handle.zig");
    _ = @import("handles.zig");
    _ = @import("call.zig");
    _ = @import("submit.zig");
    _ = @import("live.zig");
    _ = @import("calibration.zig");
    _ = @import("plan.zig");
    _ = @import("engines.zig");
    _ = @import("gpu.zig");
    _ = @import("live_view.zig");
}

export fn velo_version() [*:0]const u8 {
    return "0.1.0";
}

export fn velo_cpu_level() [*:0]const u8 {
    return @tagName(base.cpu.current());
}

export fn velo_build_mode() [*:0]const u8 {
    return @tagName(builtin.mode);
}

// ---- sizes of the structs of velo.h ----
//
// The memory layout of every struct of velo.h, as one text: a test compares it with that which cffi reads from velo.h, so a
// field that is swapped, missing or of another type does not go unnoticed.
//
// A line a struct: its name, its size, then `name:offset:size:type` for each field, apart by spaces.

const structs = .{
    .{ "velo_error", @import("errors.zig").Error },
    .{ "velo_device_info", @import("engines.zig").DeviceInfo },
    .{ "velo_gpu_info", @import("gpu.zig").Info },
    .{ "velo_gpu_simulation", @import("gpu.zig").Simulation },
    .{ "velo_build_options", @import("build.zig").BuildOptions },
    .{ "velo_build_progress", @import("build.zig").BuildProgress },
    .{ "velo_open_options", @import("open.zig").OpenOptions },
    .{ "velo_index_info", @import("info.zig").IndexInfo },
    .{ "velo_search_options", @import("call.zig").SearchOptions },
    .{ "velo_search_out", @import("call.zig").SearchOut },
    .{ "velo_segment", @import("call.zig").Segment },
    .{ "velo_delta", @import("call.zig").Delta },
    .{ "velo_filter_cost", @import("calibration.zig").Cost },
    .{ "velo_filter_plan_info", @import("calibration.zig").Plan },
    .{ "velo_completion", @import("submit.zig").Completion },
    .{ "velo_expectation", @import("calibration.zig").Expectation },
    .{ "velo_memory_plan", @import("calibration.zig").MemoryPlan },
    .{ "velo_plan_options", @import("plan.zig").Options },
    .{ "velo_sizes", @import("plan.zig").Sizes },
    .{ "velo_column", @import("filters.zig").Column },
    .{ "velo_columns_info", @import("filters.zig").ColumnsInfo },
    .{ "velo_filter_info", @import("filters.zig").FilterInfo },
    .{ "velo_live_options", @import("live.zig").LiveOptions },
    .{ "velo_ids", @import("live.zig").IdColumn },
    .{ "velo_live_done", @import("live.zig").LiveDone },
    .{ "velo_live_info", @import("live.zig").LiveInfo },
    .{ "velo_live_insert_options", @import("live.zig").InsertOptions },
    .{ "velo_live_view_info", @import("live_view.zig").ViewInfo },
    .{ "velo_live_record", @import("live_view.zig").LiveRecord },
};

const text = blk: {
    @setEvalBranchQuota(400_000);
    var lines: [:0]const u8 = "";
    for (structs) |each| lines = lines ++ line_of(each[0], each[1]);
    break :blk lines;
};

fn line_of(comptime name: []const u8, comptime T: type) []const u8 {
    comptime {
        std.debug.assert(@typeInfo(T).@"struct".layout == .@"extern");
        var line: []const u8 = std.fmt.comptimePrint("{s} {d}", .{ name, @sizeOf(T) });
        for (std.meta.fields(T)) |field|
            line = line ++ std.fmt.comptimePrint(" {s}:{d}:{d}:{s}", .{ field.name, @offsetOf(T, field.name), @sizeOf(field.type), type_of(field.type) });
        return line ++ "\n";
    }
}

/// As C has it.
fn type_of(comptime T: type) []const u8 {
    return switch (@typeInfo(T)) {
        .int => |int| std.fmt.comptimePrint("{s}int{d}_t", .{ if (int.signedness == .signed) "" else "u", int.bits }),
        .float => |float| if (float.bits == 32) "float" else "double",
        .array => |array| std.fmt.comptimePrint("char[{d}]", .{array.len}),
        .optional, .pointer => "pointer",
        .@"struct" => for (structs) |each| {
            if (each[1] == T) break each[0];
        } else @compileError(@typeName(T) ++ " is part of a struct of velo.h, but not in the table"),
        else => @compileError(@typeName(T) ++ " is no type of velo.h"),
    };
}

export fn velo_struct_layouts() [*:0]const u8 {
    return text;
}

test {
    _ = @import("common.zig");
}

test "a field is described by name, place, size and type" {
    const Pair = extern struct { a: u8, b: u64, c: [3]u8, d: ?*u8, e: f32 };
    try std.testing.expectEqualStrings("pair 40 a:0:1:uint8_t b:8:8:uint64_t c:16:3:char[3] d:24:8:pointer e:32:4:float\n", comptime line_of("pair", Pair));
}
