//! velo_live_view: what searches see of live data, and the commit that a view is the beginning of.
const std = @import("std");
const base = @import("base");
const filter_room = @import("filter");
const live_room = @import("live");
const common = @import("common.zig");
const errors = @import("errors.zig");
const handles = @import("handles.zig");
const live = @import("live.zig");
const Diagnostic = live_room.Diagnostic;
const fail = common.fail;
const ok = common.ok;

pub const ViewInfo = extern struct {
    struct_size: u32 = @sizeOf(ViewInfo),
    segment_count: u32 = 0,
    layout: u64 = 0,
    sequence: u64 = 0,
    record_count: u32 = 0,
    delta_rows: u32 = 0,
    delta_dead_rows: u64 = 0,
    schema_version: u64 = 0,
    is_as_built: i32 = 0,
    reserved: u32 = 0,
};

pub const LiveRecord = extern struct {
    struct_size: u32 = @sizeOf(LiveRecord),
    id_kind: i32 = 0,
    row_count: u64 = 0,
    numbers: ?[*]const i64 = null,
    offsets: ?[*]const i64 = null,
    bytes: ?[*]const u8 = null,
    bytes_size: u64 = 0,
    vectors: ?[*]const u8 = null,
    vectors_size: u64 = 0,
    metadata: ?[*]const u8 = null,
    metadata_size: u64 = 0,
};

export fn velo_live_view_take(handle: handles.Handle, view_out: ?*?*live_room.View) i32 {
    const self = live.begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    const out = view_out orelse return common.null_argument("view_out");
    out.* = self.live.take_view() catch return common.out_of_memory();
    return ok;
}

export fn velo_live_view_close(view: ?*live_room.View) i32 {
    if (view) |one| one.release();
    return ok;
}

export fn velo_live_view_info_get(view: ?*const live_room.View, info_out: ?*ViewInfo) i32 {
    const self = view orelse return common.null_argument("view");
    const out = info_out orelse return common.null_argument("info_out");
    if (out.struct_size < 8) return common.size_error("info_out", out.struct_size);
    common.write_versioned(ViewInfo, out, &.{
        .segment_count = @intCast(self.segments.len),
        .layout = self.layout,
        .sequence = self.sequence,
        .record_count = @intCast(self.records.len),
        .delta_rows = self.rows,
        .delta_dead_rows = self.deleted.count(),
        .schema_version = self.schema_version,
        .is_as_built = @intFromBool(self.is_as_built),
    });
    return ok;
}

export fn velo_live_view_segment(view: ?*const live_room.View, segment: u32, path_out: ?[*]u8, uuid_out: ?[*]u8, capacity: u64) i32 {
    const self = view orelse return common.null_argument("view");
    if (segment >= self.segments.len) return fail(.invalid_argument, .{ .argument = "part" }, "part {d} of {d}", .{ segment, self.segments.len });
    return live.put_names(self.segments[segment].path, self.segments[segment].uuid, path_out, uuid_out, capacity);
}

fn put_bits(words: []const u64, count: u64, out: [*]u8) void {
    for (0..@intCast((count + 7) / 8)) |i| out[i] = @truncate(words[i / 8] >> @intCast(8 * (i % 8)));
}

export fn velo_live_view_rows(view: ?*const live_room.View, segment: u32, filter_out: ?*?*filter_room.Filter) i32 {
    const self = view orelse return common.null_argument("view");
    const out = filter_out orelse return common.null_argument("filter_out");
    if (segment >= self.segments.len) return fail(.invalid_argument, .{ .argument = "part" }, "part {d} of {d}", .{ segment, self.segments.len });
    const one = &self.segments[segment];
    out.* = null;
    const deleted = one.deleted orelse return ok;
    const bytes = common.allocator.alloc(u8, @intCast((one.n + 7) / 8)) catch return common.out_of_memory();
    defer common.allocator.free(bytes);
    put_bits(deleted.words, one.n, bytes.ptr);
    for (bytes) |*byte| byte.* = ~byte.*;
    const rest: u3 = @intCast(one.n % 8);
    if (rest != 0) bytes[bytes.len - 1] &= (@as(u8, 1) << rest) - 1;
    out.* = filter_room.Filter.from_mask(common.allocator, bytes, one.n) catch return common.out_of_memory();
    return ok;
}

export fn velo_live_view_dead(view: ?*const live_room.View, bits_out: ?[*]u8) i32 {
    const self = view orelse return common.null_argument("view");
    const out = bits_out orelse return if (self.rows == 0) ok else common.null_argument("bits_out");
    put_bits(self.deleted.words, self.rows, out);
    return ok;
}

export fn velo_live_view_record(view: ?*const live_room.View, record: u32, record_out: ?*LiveRecord) i32 {
    const self = view orelse return common.null_argument("view");
    const out = record_out orelse return common.null_argument("record_out");
    if (out.struct_size < 8) return common.size_error("record_out", out.struct_size);
    if (record >= self.records.len) return fail(.invalid_argument, .{ .argument = "record" }, "record {d} of {d}", .{ record, self.records.len });
    const rows = &self.records[record].rows;
    var told: LiveRecord = .{
        .id_kind = @intCast(@intFromEnum(rows.kind)),
        .row_count = rows.count,
        .vectors = rows.vectors.ptr,
        .vectors_size = rows.vectors.len,
        .metadata = rows.metadata.ptr,
        .metadata_size = rows.metadata.len,
    };
    switch (rows.ids) {
        .numbers => |numbers| told.numbers = numbers.ptr,
        .strings => |strings| {
            told.offsets = strings.offsets.ptr;
            told.bytes = strings.bytes.ptr;
            told.bytes_size = strings.bytes.len;
        },
    }
    common.write_versioned(LiveRecord, out, &told);
    return ok;
}

export fn velo_live_commit(handle: handles.Handle, view: ?*const live_room.View, segments: ?[*]const u32, segment_count: u32, taken: ?[*]const u64, with_delta: i32, path: ?[*:0]const u8, uuid: ?[*:0]const u8, ids: ?*const live.IdColumn, done_out: ?*live.LiveDone) i32 {
    const self = live.begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    const from = view orelse return common.null_argument("view");
    const given: []const u32 = if (segments) |numbers| numbers[0..segment_count] else &.{};
    var word_count: usize = 0;
    for (given, 0..) |segment, i| {
        if (segment >= from.segments.len or (i > 0 and segment <= given[i - 1])) return fail(.invalid_argument, .{ .argument = "parts" }, "parts ascend below {d}", .{from.segments.len});
        word_count += base.BitSet.words_for(@intCast(from.segments[segment].n));
    }
    if (word_count > 0 and taken == null) return common.null_argument("taken");
    const words: []const u64 = if (taken) |bits| bits[0..word_count] else &.{};
    var what: live_room.Commit = .{ .view = from, .segments = given, .taken = words, .with_delta = with_delta != 0, .segment = null };
    if (path) |name| {
        const named = uuid orelse return common.null_argument("uuid");
        const column = live.ids_of(ids) orelse return live.bad_ids();
        what.segment = .{ .path = std.mem.span(name), .uuid = std.mem.span(named), .ids = column };
    }
    defer self.changed();
    var diagnostic: Diagnostic = .{};
    return live.status_of_write(self.live.commit(what, &diagnostic), done_out, &diagnostic);
}

test "a view that is none tells nothing" {
    var info: ViewInfo = .{};
    try std.testing.expectEqual(1, velo_live_view_info_get(null, &info));
    try std.testing.expectEqual(1, velo_live_view_take(0, null));
    try std.testing.expectEqual(0, velo_live_view_close(null));
    try std.testing.expectEqual(1, velo_live_commit(0, null, null, 0, null, 0, null, null, null, null));
    var bits: [2]u8 = undefined;
    put_bits(&.{0x0281}, 10, &bits);
    try std.testing.expectEqual([2]u8{ 0x81, 0x02 }, bits);
}
