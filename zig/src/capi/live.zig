//! velo_live of velo.h: the changes of an index, and who may make them.
const std = @import("std");
const base = @import("base");
const live_room = @import("live");
const index = @import("index");
const common = @import("common.zig");
const errors = @import("errors.zig");
const handles = @import("handles.zig");
const Handle = handles.Handle;
const fail = common.fail;
const ok = common.ok;

const Folder = live_room.Live(live_room.FolderStore);
const Diagnostic = live_room.Diagnostic;

/// The longest time that a write waits for its sync with `VELO_DURABILITY_INTERVAL`.
const interval_ns = 100 * std.time.ns_per_ms;

pub const LiveOptions = extern struct {
    struct_size: u32 = @sizeOf(LiveOptions),
    writable: i32 = 0,
    durability: i32 = 0,
    timeout_ms: u32 = 0,
    checkpoint_bytes: u64 = 0,
    delta_bytes: u64 = 0,
    folder: ?*live_room.SharedFolder = null,
};

pub const IdColumn = extern struct {
    struct_size: u32 = @sizeOf(IdColumn),
    is_string: i32 = 0,
    count: u64 = 0,
    numbers: ?[*]const i64 = null,
    offsets: ?[*]const i64 = null,
    bytes: ?[*]const u8 = null,
    bytes_size: u64 = 0,
};

pub const LiveDone = extern struct {
    struct_size: u32 = @sizeOf(LiveDone),
    durable: i32 = 0,
    rows: u64 = 0,
    sequence: u64 = 0,
    replaced: u64 = 0,
    row: u64 = 0,
    outcome: i32 = 0,
    zero: i32 = 0,
    layout: u64 = 0,
    row_count: u64 = 0,
    delta_bytes: u64 = 0,
    delta_bytes_max: u64 = 0,
};

pub const InsertOptions = extern struct {
    struct_size: u32 = @sizeOf(InsertOptions),
    is_upsert: i32 = 0,
    id_kind: i32 = 0,
    row_count: u32 = 0,
    vectors: ?[*]const u8 = null,
    vectors_size: u64 = 0,
    metadata: ?[*]const u8 = null,
    metadata_size: u64 = 0,
    request: ?[*]const u8 = null,
    request_size: u64 = 0,
    buffer_sizes: ?[*]const u64 = null,
    buffer_count: u32 = 0,
    column_count: u32 = 0,
    mark: u32 = 0,
    timeout_ms: u32 = 0,
};

pub const LiveInfo = extern struct {
    struct_size: u32 = @sizeOf(LiveInfo),
    is_written: i32 = 0,
    is_writable: i32 = 0,
    segment_count: u32 = 0,
    generation: u64 = 0,
    sequence: u64 = 0,
    rows: u64 = 0,
    dead_rows: u64 = 0,
    log_bytes: u64 = 0,
    log_synced_bytes: u64 = 0,
    layout: u64 = 0,
    delta_rows: u64 = 0,
    delta_dead_rows: u64 = 0,
    delta_bytes: u64 = 0,
    delta_bytes_max: u64 = 0,
    next_row: u64 = 0,
    dim: u32 = 0,
    dtype: i32 = 0,
    metric: i32 = 0,
    id_kind: i32 = -1,
};

pub const LiveHandle = struct {
    pub const handle_kind: handles.Kind = .live;

    store: live_room.FolderStore,
    live: Folder,
    /// Syncs in intervals what no call waits for.
    syncer: ?std.Thread = null,
    stop: std.Thread.ResetEvent = .{},

    /// At the end of such a call, whatever became of it.
    pub fn changed(self: *LiveHandle) void {
        _ = self.live.version.fetchAdd(1, .acq_rel);
    }

    fn deinit(self: *LiveHandle) void {
        self.live.deinit();
        self.store.deinit();
        common.allocator.destroy(self);
    }

    fn sync_now_and_then(self: *LiveHandle) void {
        while (true) {
            if (self.stop.timedWait(interval_ns)) return else |_| {}
            var diagnostic: Diagnostic = .{};
            self.live.sync(&diagnostic) catch {}; // where it is poisoned the next write says so
        }
    }
};

pub const verify = live_room.verify;

fn fail_live(err: live_room.Error, diagnostic: *const Diagnostic) i32 {
    return switch (err) {
        error.Busy => fail(.busy, .{}, "{s}", .{diagnostic.message()}),
        else => |other| common.fail_index(other, diagnostic),
    };
}

/// The status of a call that ends so.
fn status_of(outcome: live_room.Error!void, diagnostic: *const Diagnostic) i32 {
    outcome catch |err| return fail_live(err, diagnostic);
    return ok;
}

/// The status of a write, which tells what became of it.
pub fn status_of_write(outcome: live_room.Error!live_room.Done, done_out: ?*LiveDone, diagnostic: *const Diagnostic) i32 {
    tell(done_out, outcome catch |err| return fail_live(err, diagnostic));
    return ok;
}

export fn velo_folder_take(descriptor: i32, folder_out: ?*?*live_room.SharedFolder) i32 {
    const out = folder_out orelse return common.null_argument("folder_out");
    out.* = live_room.SharedFolder.create(.{ .fd = descriptor }) catch return common.out_of_memory();
    return ok;
}

export fn velo_folder_release(place: ?*?*live_room.SharedFolder) i32 {
    if (common.take(live_room.SharedFolder, place)) |folder| folder.release();
    return ok;
}

export fn velo_live_open(path: ?[*:0]const u8, options: ?*const LiveOptions, live_out: ?*Handle) i32 {
    const folder = path orelse return common.null_argument("path");
    const given = options orelse return common.null_argument("options");
    const out = live_out orelse return common.null_argument("live_out");
    const o = common.versioned(LiveOptions, given) orelse return common.size_error("options", given.struct_size);
    if (o.durability < 0 or o.durability > 2) return fail(.invalid_argument, .{ .argument = "durability" }, "durability {d} is unknown", .{o.durability});
    const self = common.allocator.create(LiveHandle) catch return common.out_of_memory();
    const status = open(self, std.mem.span(folder), o);
    if (status != ok) {
        common.allocator.destroy(self);
        return status;
    }
    out.* = handles.open(LiveHandle, self) catch {
        self.deinit();
        return common.out_of_memory();
    };
    return ok;
}

fn open(self: *LiveHandle, path: []const u8, o: LiveOptions) i32 {
    var diagnostic: Diagnostic = .{};
    self.* = .{ .store = undefined, .live = undefined };
    self.store = if (o.folder) |shared| .of(shared) else live_room.FolderStore.open(path) catch |err| {
        if (err == error.FileNotFound or err == error.NotDir) return fail(.not_an_index, .{ .argument = "path" }, "{s} is no folder", .{path});
        return fail(.io, .{ .argument = "path" }, "cannot open {s}: {t}", .{ path, err });
    };
    var live_options: live_room.Options = .{
        .writable = o.writable != 0,
        .durability = @enumFromInt(o.durability),
        .checkpoint_bytes = o.checkpoint_bytes,
        .delta_bytes = if (o.delta_bytes > 0) o.delta_bytes else 64 << 20,
    };
    if (o.timeout_ms > 0) live_options.timeout_ns = nanoseconds(o.timeout_ms);
    self.live = Folder.open(common.allocator, &self.store, live_options, &diagnostic) catch |err| {
        self.store.deinit();
        return fail_live(err, &diagnostic);
    };
    return ok;
}

export fn velo_live_create(path: ?[*:0]const u8, dim: u32, metric: i32, dtype: i32, schema: ?[*:0]const u8) i32 {
    const folder = path orelse return common.null_argument("path");
    const metrics = std.enums.fromInt(live_room.scan.Metric, metric) orelse return fail(.invalid_argument, .{ .argument = "metric" }, "metric {d} is unknown", .{metric});
    const types = std.enums.fromInt(live_room.scan.Dtype, dtype) orelse return fail(.invalid_argument, .{ .argument = "dtype" }, "dtype {d} is unknown", .{dtype});
    if (dim == 0 or dim > base.limits.dim_max) return fail(.invalid_argument, .{ .argument = "dim" }, "vectors have 1 to {d} dimensions, not {d}", .{ base.limits.dim_max, dim });
    var store = live_room.FolderStore.open(std.mem.span(folder)) catch |err| return fail(.io, .{ .argument = "path" }, "cannot open {s}: {t}", .{ folder, err });
    defer store.deinit();
    var diagnostic: Diagnostic = .{};
    const options: live_room.CreateOptions = .{ .dim = dim, .metric = metrics, .dtype = types, .schema = if (schema) |text| std.mem.span(text) else null };
    return status_of(live_room.create(common.allocator, &store, options, &diagnostic), &diagnostic);
}

export fn velo_live_segment(handle: Handle, segment: u32, path_out: ?[*]u8, uuid_out: ?[*]u8, capacity: u64) i32 {
    const self = handles.enter(LiveHandle, "live", handle) catch return errors.last_status();
    defer handles.leave(handle);
    self.live.mutex.lock();
    defer self.live.mutex.unlock();
    const segments = self.live.segments.items;
    if (segment >= segments.len) return fail(.invalid_argument, .{ .argument = "part" }, "part {d} of {d}", .{ segment, segments.len });
    return put_names(segments[segment].path, segments[segment].uuid, path_out, uuid_out, capacity);
}

pub fn put_names(path: []const u8, uuid: []const u8, path_out: ?[*]u8, uuid_out: ?[*]u8, capacity: u64) i32 {
    for ([_]?[*]u8{ path_out, uuid_out }, [_][]const u8{ path, uuid }) |target, text| {
        const out = target orelse return common.null_argument("path_out");
        if (capacity <= text.len) return fail(.invalid_argument, .{ .argument = "capacity" }, "{s} takes {d} bytes", .{ text, text.len + 1 });
        common.put_text(out[0..@intCast(capacity)], text);
    }
    return ok;
}

fn nanoseconds(milliseconds: u32) u64 {
    return @as(u64, milliseconds) * std.time.ns_per_ms;
}

export fn velo_live_next_segment(handle: Handle, path_out: ?[*]u8, capacity: u64) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    const out = path_out orelse return common.null_argument("path_out");
    if (capacity < 32) return fail(.invalid_argument, .{ .argument = "capacity" }, "a path takes 32 bytes", .{});
    var buffer: [32]u8 = undefined;
    var diagnostic: Diagnostic = .{};
    common.put_text(out[0..@intCast(capacity)], self.live.next_segment(&buffer, &diagnostic) catch |err| return fail_live(err, &diagnostic));
    return ok;
}

export fn velo_live_release_segment(handle: Handle, path: ?[*:0]const u8) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    self.live.release_segment(std.mem.span(path orelse return common.null_argument("path")));
    return ok;
}

pub fn ids_of(column: ?*const IdColumn) ?live_room.Ids {
    const given = common.versioned(IdColumn, column orelse return null) orelse return null;
    const count: usize = @intCast(given.count);
    if (given.is_string == 0) return .{ .numbers = if (given.numbers) |numbers| numbers[0..count] else if (count == 0) &.{} else return null };
    const offsets = given.offsets orelse return null;
    const bytes: []const u8 = if (given.bytes) |bytes| bytes[0..@intCast(given.bytes_size)] else &.{};
    const ids: live_room.Ids = .{ .strings = .{ .offsets = offsets[0 .. count + 1], .bytes = bytes } };
    return if (ids.is_whole()) ids else null;
}

pub fn bad_ids() i32 {
    return fail(.invalid_argument, .{ .argument = "ids" }, "ids are NULL, or their offsets do not ascend within their bytes", .{});
}

export fn velo_live_attach(handle: Handle, segment: u32, ids: ?*const IdColumn) i32 {
    const self = handles.enter(LiveHandle, "live", handle) catch return errors.last_status();
    defer handles.leave(handle);
    const column = ids_of(ids) orelse return bad_ids();
    if (segment >= self.live.segments.items.len) return fail(.invalid_argument, .{ .argument = "part" }, "part {d} of {d}", .{ segment, self.live.segments.items.len });
    var diagnostic: Diagnostic = .{};
    return status_of(self.live.attach(segment, column, &diagnostic), &diagnostic);
}

export fn velo_live_begin(handle: Handle, id_kind: i32, next_row: u64, schema: ?[*:0]const u8) i32 {
    const self = handles.enter(LiveHandle, "live", handle) catch return errors.last_status();
    defer handles.leave(handle);
    const kind = if (id_kind == -1) null else std.enums.fromInt(live_room.Kind, @as(u32, @bitCast(id_kind))) orelse
        return fail(.invalid_argument, .{ .argument = "id_kind" }, "id_kind {d} is unknown", .{id_kind});
    if (next_row > live_room.manifest.next_row_max) return fail(.invalid_argument, .{ .argument = "next_row" }, "row numbers end at {d}", .{live_room.manifest.next_row_max});
    const built: live_room.Built = .{ .kind = kind, .next_row = next_row, .schema = if (schema) |text| std.mem.span(text) else null };
    for (self.live.segments.items) |segment| if (segment.ids == null) return fail(.invalid_argument, .{ .argument = "live" }, "a part has no ids attached", .{});
    var diagnostic: Diagnostic = .{};
    self.live.begin(built, &diagnostic) catch |err| return fail_live(err, &diagnostic);
    if (self.live.options.writable and self.live.options.durability == .interval)
        self.syncer = std.Thread.spawn(.{ .stack_size = 256 << 10 }, LiveHandle.sync_now_and_then, .{self}) catch return common.out_of_memory();
    return ok;
}

export fn velo_live_schema(handle: Handle, text_out: ?[*]u8, capacity: u64, size_out: ?*u64, version_out: ?*u64) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    const size = size_out orelse return common.null_argument("size_out");
    const version = version_out orelse return common.null_argument("version_out");
    const room: []u8 = if (text_out) |out| out[0..@intCast(capacity)] else &.{};
    size.*, version.* = self.live.copy_schema(room);
    return ok;
}

export fn velo_live_set_schema(handle: Handle, schema: ?[*:0]const u8, version: u64, done_out: ?*LiveDone) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    const text = schema orelse return common.null_argument("schema");
    defer self.changed();
    var diagnostic: Diagnostic = .{};
    return status_of_write(self.live.set_schema(std.mem.span(text), version, &diagnostic), done_out, &diagnostic);
}

fn tell(out: ?*LiveDone, done: live_room.Done) void {
    const target = out orelse return;
    common.write_versioned(LiveDone, target, &.{
        .durable = @intFromBool(done.durable),
        .rows = done.rows,
        .sequence = done.sequence,
        .replaced = done.replaced,
        .row = done.row,
        .outcome = @intFromEnum(done.outcome),
        .layout = done.layout,
        .row_count = done.row_count,
        .delta_bytes = done.delta_bytes,
        .delta_bytes_max = done.delta_bytes_max,
    });
}

/// A call of a handle that has begun; handles.leave ends it.
pub fn begun(handle: Handle) error{Reported}!*LiveHandle {
    const self = try handles.enter(LiveHandle, "live", handle);
    if (self.live.begun) return self;
    handles.leave(handle);
    return common.report(.invalid_argument, .{ .argument = "live" }, "live was not begun", .{});
}

export fn velo_live_delete(handle: Handle, ids: ?*const IdColumn, timeout_ms: u32, done_out: ?*LiveDone) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    const column = ids_of(ids) orelse return bad_ids();
    defer self.changed();
    var diagnostic: Diagnostic = .{};
    return status_of_write(self.live.delete(column, timeout_of(timeout_ms), &diagnostic), done_out, &diagnostic);
}

/// Rows of a view; null, and the failure was recorded, where pointers are missing.
fn rows_from(segments: ?[*]const u32, vertices: ?[*]const u32, row_count: u64, status: *i32) ?[]live_room.Row {
    const count: usize = @intCast(row_count);
    if (count > 0 and (segments == null or vertices == null)) {
        status.* = if (segments == null) common.null_argument("parts") else common.null_argument("vertices");
        return null;
    }
    const rows = common.allocator.alloc(live_room.Row, count) catch {
        status.* = common.out_of_memory();
        return null;
    };
    for (rows, 0..) |*row, i| row.* = .{ .segment = segments.?[i], .vertex = vertices.?[i] };
    return rows;
}

export fn velo_live_delete_rows(handle: Handle, layout: u64, segments: ?[*]const u32, vertices: ?[*]const u32, row_count: u64, timeout_ms: u32, done_out: ?*LiveDone) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    var status: i32 = ok;
    const rows = rows_from(segments, vertices, row_count, &status) orelse return status;
    defer common.allocator.free(rows);
    defer self.changed();
    var diagnostic: Diagnostic = .{};
    return status_of_write(self.live.delete_rows(layout, rows, timeout_of(timeout_ms), &diagnostic), done_out, &diagnostic);
}

/// Null: as the handle was opened.
fn timeout_of(timeout_ms: u32) ?u64 {
    return if (timeout_ms > 0) nanoseconds(timeout_ms) else null;
}

fn bytes_of(pointer: ?[*]const u8, size: u64) []const u8 {
    return if (pointer) |bytes| bytes[0..@intCast(size)] else "";
}

const Given = struct {
    rows: live_room.Rows,
    /// Null: as the handle was opened.
    timeout_ns: ?u64,
    /// The metadata, where it is not as the caller has it.
    encoded: ?[]u8 = null,

    fn deinit(self: *const Given) void {
        if (self.encoded) |bytes| common.allocator.free(bytes);
    }
};

/// The rows of a call; null, and the failure was recorded, where they are invalid.
fn given_rows(ids: ?*const IdColumn, options: ?*const InsertOptions, status: *i32) ?Given {
    const given = options orelse {
        status.* = common.null_argument("options");
        return null;
    };
    const o = common.versioned(InsertOptions, given) orelse {
        status.* = common.size_error("options", given.struct_size);
        return null;
    };
    const kind = std.enums.fromInt(live_room.Kind, @as(u32, @bitCast(o.id_kind))) orelse {
        status.* = fail(.invalid_argument, .{ .argument = "id_kind" }, "id_kind {d} is unknown", .{o.id_kind});
        return null;
    };
    const is_numbered = kind == .row and o.is_upsert == 0;
    const column: ?live_room.Ids = if (is_numbered) .{ .numbers = &.{} } else ids_of(ids);
    const is_right = if (column) |one| is_numbered or (one.len() == o.row_count and (kind == .strings) == (one == .strings)) else false;
    if (!is_right) {
        status.* = bad_ids();
        return null;
    }
    const metadata = bytes_of(o.metadata, o.metadata_size);
    const columns: live_room.record_batch.Columns = .{
        .mark = o.mark,
        .rows = o.row_count,
        .count = o.column_count,
        .buffer_sizes = if (o.buffer_sizes) |sizes| sizes[0..o.buffer_count] else &.{},
        .buffers = metadata,
    };
    if (!columns.is_whole()) {
        status.* = fail(.invalid_argument, .{ .argument = "metadata" }, "metadata has not as many bytes as its buffers", .{});
        return null;
    }
    const encoded = live_room.record_batch.encode(common.allocator, &columns) catch {
        status.* = common.out_of_memory();
        return null;
    };
    return .{ .encoded = encoded, .timeout_ns = timeout_of(o.timeout_ms), .rows = .{
        .count = o.row_count,
        .kind = kind,
        .is_upsert = o.is_upsert != 0,
        .ids = column.?,
        .vectors = bytes_of(o.vectors, o.vectors_size),
        .metadata = encoded orelse metadata,
        .request = bytes_of(o.request, o.request_size),
    } };
}

export fn velo_live_insert(handle: Handle, ids: ?*const IdColumn, options: ?*const InsertOptions, done_out: ?*LiveDone) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    var status: i32 = ok;
    const given = given_rows(ids, options, &status) orelse return status;
    defer given.deinit();
    const rows = given.rows;
    defer self.changed();
    var diagnostic: Diagnostic = .{};
    return status_of_write(self.live.insert(rows, given.timeout_ns, &diagnostic), done_out, &diagnostic);
}

export fn velo_live_reserve(handle: Handle, ids: ?*const IdColumn, options: ?*const InsertOptions, done_out: ?*LiveDone) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    var status: i32 = ok;
    const given = given_rows(ids, options, &status) orelse return status;
    defer given.deinit();
    const rows = given.rows;
    defer self.changed();
    var diagnostic: Diagnostic = .{};
    return status_of_write(self.live.reserve(rows, given.timeout_ns, &diagnostic), done_out, &diagnostic);
}

export fn velo_live_insert_segment(handle: Handle, ids: ?*const IdColumn, options: ?*const InsertOptions, first_row: u64, path: ?[*:0]const u8, uuid: ?[*:0]const u8, segment_ids: ?*const IdColumn, done_out: ?*LiveDone) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    var status: i32 = ok;
    const given = given_rows(ids, options, &status) orelse return status;
    defer given.deinit();
    const rows = given.rows;
    const call: live_room.Call = .{
        .rows = rows,
        .first = if (rows.is_numbered()) first_row else 0,
        .path = std.mem.span(path orelse return common.null_argument("path")),
        .uuid = std.mem.span(uuid orelse return common.null_argument("uuid")),
        .ids = ids_of(segment_ids) orelse return bad_ids(),
    };
    defer self.changed();
    var diagnostic: Diagnostic = .{};
    return status_of_write(self.live.insert_segment(call, given.timeout_ns, &diagnostic), done_out, &diagnostic);
}

export fn velo_live_update(handle: Handle, ids: ?*const IdColumn, options: ?*const InsertOptions, layout: u64, segments: ?[*]const u32, vertices: ?[*]const u32, done_out: ?*LiveDone) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    var status: i32 = ok;
    const given = given_rows(ids, options, &status) orelse return status;
    defer given.deinit();
    const rows = given.rows;
    if (!rows.is_upsert) return fail(.invalid_argument, .{ .argument = "is_upsert" }, "an update replaces rows: is_upsert is 1", .{});
    const places = rows_from(segments, vertices, rows.count, &status) orelse return status;
    defer common.allocator.free(places);
    defer self.changed();
    var diagnostic: Diagnostic = .{};
    return status_of_write(self.live.update(rows, .{ .layout = layout, .rows = places }, given.timeout_ns, &diagnostic), done_out, &diagnostic);
}

export fn velo_live_sweep(handle: Handle) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    var diagnostic: Diagnostic = .{};
    return status_of(self.live.sweep(&diagnostic), &diagnostic);
}

export fn velo_live_refresh(handle: Handle, changed_out: ?*i32) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    var diagnostic: Diagnostic = .{};
    const found = self.live.refresh(&diagnostic) catch |err| {
        self.changed();
        return fail_live(err, &diagnostic);
    };
    if (found != .nothing) self.changed();
    if (changed_out) |out| out.* = @intFromEnum(found);
    return ok;
}

export fn velo_live_version(handle: Handle) u64 {
    const self = handles.enter(LiveHandle, "live", handle) catch return 0;
    defer handles.leave(handle);
    return self.live.version.load(.acquire);
}

export fn velo_live_sync(handle: Handle) i32 {
    const self = begun(handle) catch return errors.last_status();
    defer handles.leave(handle);
    defer self.changed();
    var diagnostic: Diagnostic = .{};
    return status_of(self.live.sync(&diagnostic), &diagnostic);
}

export fn velo_live_info_get(handle: Handle, info_out: ?*LiveInfo) i32 {
    const self = handles.enter(LiveHandle, "live", handle) catch return errors.last_status();
    defer handles.leave(handle);
    const out = info_out orelse return common.null_argument("info_out");
    if (out.struct_size < 8) return common.size_error("info_out", out.struct_size);
    const info = self.live.info();
    common.write_versioned(LiveInfo, out, &.{
        .is_written = @intFromBool(info.is_written),
        .is_writable = @intFromBool(info.is_writable),
        .segment_count = @intCast(info.segments),
        .generation = info.generation,
        .sequence = info.sequence,
        .rows = info.rows,
        .dead_rows = info.deleted,
        .log_bytes = info.log_bytes,
        .log_synced_bytes = info.log_synced_bytes,
        .layout = info.layout,
        .delta_rows = info.delta_rows,
        .delta_dead_rows = info.delta_deleted,
        .delta_bytes = info.delta_bytes,
        .delta_bytes_max = info.delta_bytes_max,
        .next_row = info.next_row,
        .dim = self.live.dim,
        .dtype = @intFromEnum(self.live.dtype),
        .metric = @intFromEnum(self.live.shape().metric),
        .id_kind = if (info.kind) |kind| @intCast(@intFromEnum(kind)) else -1,
    });
    return ok;
}

export fn velo_live_close(place: ?*Handle) i32 {
    const self = (handles.close(LiveHandle, (place orelse return ok).*) catch return handles.busy()) orelse return ok;
    self.stop.set();
    if (self.syncer) |thread| thread.join();
    var diagnostic: Diagnostic = .{};
    const failure = self.live.finish(&diagnostic);
    self.deinit();
    failure catch |err| return fail_live(err, &diagnostic);
    return ok;
}

// ---- folders ----
//
// Operations on the folder of an index that is not open: its manifest is replaced, its files are checked.

export fn velo_index_recommit(
    path: ?[*:0]const u8,
    prefix: ?[*:0]const u8,
    file_names: ?[*]const ?[*:0]const u8,
    file_count: u32,
    user_json: ?[*:0]const u8,
) i32 {
    const folder = path orelse return common.null_argument("path");
    const beginning = prefix orelse return common.null_argument("prefix");
    const user = user_json orelse return common.null_argument("user_json");
    const names = common.allocator.alloc([]const u8, file_count) catch return common.out_of_memory();
    defer common.allocator.free(names);
    for (names, 0..) |*name, i| name.* = std.mem.span((file_names orelse return common.null_argument("file_names"))[i] orelse return common.null_argument("file_names"));
    var diagnostic: index.Diagnostic = .{};
    index.recommit(common.allocator, std.mem.span(folder), std.mem.span(beginning), names, std.mem.span(user), &diagnostic) catch |err|
        return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_calibration_store(path: ?[*:0]const u8, calibration_json: ?[*:0]const u8) i32 {
    const folder = path orelse return common.null_argument("path");
    var diagnostic: index.Diagnostic = .{};
    const json = if (calibration_json) |text| std.mem.span(text) else null;
    index.store_calibration(common.allocator, std.mem.span(folder), json, &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_verify(path: ?[*:0]const u8, pages_checked_out: ?*u64) i32 {
    const folder = path orelse return common.null_argument("path");
    var diagnostic: index.Diagnostic = .{};
    var pages: u64 = 0;
    verify(common.allocator, std.mem.span(folder), &pages, &diagnostic) catch |err| return fail_live(err, &diagnostic);
    if (pages_checked_out) |out| out.* = pages;
    return ok;
}

test "a handle is asked for what it has, and refused what it has not" {
    var handle: Handle = 0;
    try std.testing.expectEqual(5, velo_live_open("/nonexistent", &.{}, &handle));
    try std.testing.expectEqual(1, velo_live_open("/", &.{ .durability = 3 }, &handle));
    try std.testing.expectEqual(0, handle);
    var done: LiveDone = .{};
    try std.testing.expectEqual(1, velo_live_delete(0, &.{}, 0, &done));
    try std.testing.expectEqual(1, velo_live_reserve(0, null, null, &done));
    try std.testing.expectEqual(1, velo_live_insert_segment(0, null, null, 0, null, null, null, &done));
    try std.testing.expectEqual(0, velo_live_close(null));
    var found = errors.Error{};
    try std.testing.expectEqual(0, errors.velo_last_error(&found));
    const offsets = [_]i64{ 0, 3, 2 };
    try std.testing.expectEqual(null, ids_of(&.{ .is_string = 1, .count = 2, .offsets = &offsets, .bytes = "abc", .bytes_size = 3 }));
    try std.testing.expectEqual(null, ids_of(&.{ .count = 2 }));
    try std.testing.expectEqual(0, ids_of(&.{}).?.len());
}
