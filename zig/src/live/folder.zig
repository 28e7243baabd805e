//! A folder with live data, open: to read, or to write, as any number of processes may.
//!
//! A write goes, with the folder's lock: what others wrote is read, ids are looked up, a record is appended to the log and applied.
//! Without the lock it is synced where durability asks for it, and acknowledged. One sync serves all that wait for it. Checkpoints
//! commit the log into new files, so it stays short. A sync that fails leaves the writer poisoned: the content of the device is
//! unknown, so it writes no more until it is opened again. Other processes write everything anew before they go on.
//! Calls of other processes are the subject of calls.zig, reading of replay.zig, manifests of checkpoint.zig and first_write.zig.
//!
//! Opening takes three calls, since ids are in the caller's files: `open` says which segments there are, `attach` brings the
//! ids of each, `begin` reads tombstones and log.
const std = @import("std");
const base = @import("base");
const calls_file = @import("calls.zig");
const checkpoint_file = @import("checkpoint.zig");
const delta_room = @import("delta.zig");
const diagnostics = @import("diagnostic.zig");
const file_names = @import("file_names.zig");
const find = @import("find.zig");
const first_write_file = @import("first_write.zig");
const codes_file = @import("codes.zig");
const wal_file = @import("wal.zig");
const rows_file = @import("rows.zig");
const manifest_file = @import("manifest.zig");
const page_file = @import("page.zig");
const replay_file = @import("replay.zig");
const scan = @import("scan.zig");
const BitSet = base.BitSet;
const Delta = delta_room.Delta;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Ids = find.Ids;
const Page = page_file.Page;
const Row = delta_room.Row;
const View = delta_room.View;
const file_error = diagnostics.file_error;

pub const Durability = enum(u8) {
    /// A write returns once it is on the device.
    sync = 0,
    /// It is there a tenth of a second later; a process that is killed loses nothing.
    interval = 1,
    /// When the system gets to it, or at a checkpoint, a flush or the end.
    process = 2,
};

pub const Options = struct {
    writable: bool = false,
    durability: Durability = .sync,
    /// A log longer than this is folded into tombstones; 0: four MiB, and at least half of what the tombstones take.
    checkpoint_bytes: u64 = 0,
    /// The largest size of the delta; a write that would exceed it is refused: Done.outcome.
    delta_bytes: u64 = 64 << 20,
    /// The longest time that a call waits for a call of another process.
    timeout_ns: u64 = 60 * std.time.ns_per_s,
    /// Decides uuid and salts; the system's randomness unless a test says otherwise.
    seed: ?u64 = null,
};

/// Properties of an index from the files of its segments. Its manifest keeps it from the first write on, since segments come and go.
pub const Built = struct {
    kind: ?rows_file.Kind = null,
    /// The number behind that of the last row, where ids are such.
    next_row: u64 = 0,
    schema: ?[]const u8 = null,
};

/// The outcome of a write.
pub const Outcome = enum(u8) {
    done = 0,
    /// A row with the id of `row` is there: nothing was done.
    duplicate = 1,
    /// The delta has no room: nothing was done.
    full = 2,
    /// Rows have other numbers by now, or are there no more: nothing was done.
    stale = 3,
    /// A call with this name was done before; this is what became of it.
    repeated = 4,
    /// The id of `row` is no number that this index ever gave: nothing was done.
    no_row_number = 5,
    /// Another process changed the segments: nothing was done, and the folder has to be opened again.
    moved = 6,
};

/// The result of a look at what others did.
pub const Found = enum(u8) { nothing = 0, something = 1, moved = 2 };

pub const Done = struct {
    outcome: Outcome = .done,
    /// Rows that were there and are gone; of an insert those that are new.
    rows: u64 = 0,
    /// Of those inserted: took the place of one that was there.
    replaced: u64 = 0,
    /// The id of the first row where the index numbers them, or the row that an outcome is about; where there was no room the
    /// bytes that the call takes.
    row: u64 = 0,
    /// The change that did it, or the last one before where nothing was to be done.
    sequence: u64 = 0,
    durable: bool = false,
    /// A writer needs these after each call (Info).
    layout: u64 = 0,
    row_count: u64 = 0,
    delta_bytes: u64 = 0,
    delta_bytes_max: u64 = 0,
};

pub const Info = struct {
    is_written: bool,
    is_writable: bool,
    generation: u64,
    sequence: u64,
    layout: u64,
    /// Of segments.
    rows: u64,
    deleted: u64,
    segments: u64,
    delta_rows: u64,
    delta_deleted: u64,
    delta_bytes: u64,
    delta_bytes_max: u64,
    kind: ?rows_file.Kind,
    next_row: u64,
    log_bytes: u64,
    /// Bytes of it that are known to be on the device.
    log_synced_bytes: u64,
    poisoned: bool,
};

/// Places of rows when a caller read them.
pub const Expected = struct { layout: u64, rows: []const Row };

/// Numbers of the rows of one call.
pub const Numbers = struct {
    first: u64,
    count: u64,

    fn holds(self: Numbers, number: i64) bool {
        return number >= 0 and @as(u64, @intCast(number)) -% self.first < self.count;
    }
};

/// A call of more rows than the delta has room for; they come as a segment.
pub const Call = struct {
    /// Without vectors and metadata, which the segment has; where the index numbers them without ids.
    rows: rows_file.Rows,
    /// Of those the number of the first, as `reserve` gave it.
    first: u64 = 0,
    /// A folder, complete and synced but for ids.find.
    path: []const u8,
    uuid: []const u8,
    /// In the order of its vertices; borrowed until the folder closes or a commit takes the segment away.
    ids: find.Ids,
};

/// A segment that takes the place of the segments and rows that it was made of.
pub const Commit = struct {
    view: *const View,
    /// Segments of the view that the new one takes the place of; ascending.
    segments: []const u32,
    /// The rows of these segments that went into the new one: a bit a row, and each segment begins a word. A merge that goes on
    /// after a kill took them before the view, in which some of them may be dead.
    taken: []const u64,
    /// Whether the rows of its delta went into it as well.
    with_delta: bool,
    /// Null: nothing lived, and no segment is made.
    segment: ?struct {
        /// A folder, complete and synced but for ids.find.
        path: []const u8,
        uuid: []const u8,
        ids: find.Ids,
    },
};

/// A manifest holds segments and requests beside it.
const schema_bytes_max = manifest_file.bytes_max / 2;
/// How long the end of a writer waits for others.
const finish_ns = std.time.ns_per_s;

pub fn Live(comptime Store: type) type {
    return struct {
        const Self = @This();
        const calls = calls_file.Calls(Self);
        const replay = replay_file.Replay(Self);
        const checkpoints = checkpoint_file.Checkpoints(Self);
        const first_write = first_write_file.FirstWrite(Self);
        pub const File = Store.File;
        pub const Limits = replay.Limits;
        pub const is_sound = calls.is_sound;
        pub const apply_log = replay.apply_log;
        pub const limits = replay.limits;
        pub const is_told = replay.is_told;
        pub const look = replay.look;
        pub const read_log = replay.read_log;
        pub const replay_all = replay.replay_all;
        pub const checkpoint_bytes = checkpoints.checkpoint_bytes;
        pub const make_checkpoint = checkpoints.make_checkpoint;
        pub const put_aside = checkpoints.put_aside;
        pub const remove_litter = checkpoints.remove_litter;
        pub const take_over = checkpoints.take_over;
        pub const write_new_manifest = checkpoints.write_new_manifest;
        pub const adopt = first_write.adopt;
        pub const describe_build = first_write.describe_build;
        pub const read_segment_manifest = first_write.read_segment_manifest;
        pub const remove_old_names = first_write.remove_old_names;

        pub const Segment = struct {
            path: []const u8,
            uuid: []const u8,
            n: u64,
            ids: ?Ids = null,
            finder: ?find.Finder = null,
            finder_map: ?Store.Map = null,
            finder_owned: ?[]align(4) u8 = null,
            /// Rows that are dead: what searches leave out.
            deleted: BitSet,
            deleted_count: u64 = 0,
            /// Those and the ones whose record waits for its sync. A writer's; readers have the same as `dead`.
            pending_delete: BitSet,
            /// The file that holds tombstones of this segment, and how many.
            file: ?[]const u8 = null,
            file_count: u64 = 0,

            pub fn deinit(self: *Segment, live: *Self) void {
                const allocator = live.allocator;
                allocator.free(self.path);
                allocator.free(self.uuid);
                if (self.file) |name| allocator.free(name);
                if (self.finder_map) |bytes| live.store.unmap(bytes);
                if (self.finder_owned) |bytes| allocator.free(bytes);
                self.deleted.deinit(allocator);
                if (live.options.writable) self.pending_delete.deinit(allocator);
            }

            fn bury(self: *Segment, ids: Ids, row: usize, diagnostic: *Diagnostic) Error!void {
                const vertex = self.finder.?.find(self.ids.?, ids, row) orelse {
                    diagnostic.say("a part was made without a row that it should have", .{});
                    return error.InvalidArgument;
                };
                self.pending_delete.insert(vertex);
            }
        };

        /// A record that waits for its sync: rows that it takes away, and the records of the delta once it is seen.
        pub const Waiting = struct { sequence: u64, rows: []Row, records: u32 };
        /// The folder of a segment in the making.
        const Held = struct { path: []const u8, hold: Store.Hold };

        allocator: std.mem.Allocator,
        store: *Store,
        options: Options,
        prng: base.Prng,
        /// Threads that write go one after the other: with it they wait for the folder's lock, and then for `mutex`.
        turn: base.TimedMutex = .{},
        /// A writer's, also while it makes a new manifest.
        mutex: std.Thread.Mutex = .{},
        /// The holder of `mutex` has the folder's lock, too, and has read all that was written.
        is_current: std.atomic.Value(bool) = .init(false),
        /// Guards also what views copy, and is held for no sync: no search waits for the device. Taken after
        /// `mutex` where both are.
        seen: std.Thread.Mutex = .{},
        /// A sync has ended, or the writer was poisoned.
        changed: std.Thread.Condition = .{},

        /// What processes share; null: this one reads, and there is none.
        page: ?*Page = null,
        boot: [16]u8,
        /// It was deleted: other processes may already use another one.
        lost_page: bool = false,
        /// A record that changes nothing was read: it may be the last word of this log, and another manifest may be there.
        may_be_replaced: bool = false,
        /// Counts what may have changed what a view shows.
        version: std.atomic.Value(u64) = .init(1),
        begun: bool = false,
        uuid: [32]u8 = @splat('0'),
        dim: u32 = 0,
        metric: []const u8 = "",
        dtype: scan.Dtype = .f32,
        /// The kind of ids, as far as a row or a segment has told.
        kind: ?rows_file.Kind = null,
        /// Columns of the metadata, as written by the creation of the folder and by added columns.
        schema: ?[]const u8 = null,
        /// Changes with it.
        schema_version: u64 = 1,
        /// Columns were added: an older velo must not read it.
        has_columns: bool = false,
        /// The uuid of the segment that the folder was built with.
        built: ?[]const u8 = null,
        /// Rows came since it was built: an older velo must not read it.
        has_rows: bool = false,
        requests: manifest_file.Requests = .{},
        generation: u64 = 0,
        next_row: u64 = 0,
        /// Numbers below `next_row` of rows that are still to come, in any process; no caller knows them yet.
        reserved: std.ArrayList(Numbers) = .empty,
        next_file: u64 = 1,
        segments: std.ArrayList(Segment) = .empty,
        delta: *delta_room.Delta,
        /// Changes with every commit: rows have other numbers then.
        layout: u64 = 1,
        /// Commits that made a segment of the delta, by any process: its rows had other numbers before.
        flushes: u64 = 0,
        /// Other segments were found than are open.
        moved: bool = false,
        held: std.ArrayList(Held) = .empty,
        /// Named by the manifest that was read. Null until the first write after a build: there is no log and no live.json, and
        /// the files of the one segment are in the folder of the index itself.
        wal_name: ?[]const u8 = null,
        wal: ?Store.File = null,
        /// Of the manifest that names it.
        wal_generation: u64 = 0,
        /// No longer the log, to be closed when its sync has ended.
        retired: ?Store.File = null,
        wal_header: wal_file.Header = undefined,
        /// The offset of the first record that is a change: behind those that were carried over.
        wal_begin: u64 = 0,
        position: wal_file.Position = .{ .salt = 0, .offset = 0, .sequence = 0 },
        /// The change that the tombstone files hold.
        manifest_sequence: u64 = 0,
        sequence: u64 = 0,
        /// The last change that views show.
        shown_sequence: u64 = 0,
        /// Up to here changes and bytes are on the device.
        synced_sequence: u64 = 0,
        synced_offset: u64 = 0,
        last_is_promise: bool = false,
        syncing: bool = false,
        /// The log that is synced.
        syncing_generation: u64 = 0,
        poisoned: bool = false,
        waiting: std.ArrayList(Waiting) = .empty,
        checkpoint_at: u64 = 0,

        // ---- opening ----

        pub fn open(allocator: std.mem.Allocator, store: *Store, options: Options, diagnostic: *Diagnostic) Error!Self {
            var self: Self = .{
                .allocator = allocator,
                .store = store,
                .options = options,
                .prng = .init(options.seed orelse std.crypto.random.int(u64)),
                .delta = try .create(allocator),
                .boot = store.boot(),
            };
            errdefer self.deinit();
            try self.read_manifest(diagnostic);
            return self;
        }

        /// Closes the log as it is. A writer calls `finish` before.
        pub fn deinit(self: *Self) void {
            if (self.wal) |file| self.store.close(file);
            self.wal = null;
            for (self.held.items) |one| self.let_go(one);
            self.held.deinit(self.allocator);
            self.forget_segments();
            self.segments.deinit(self.allocator);
            self.delta.release();
            self.requests.deinit(self.allocator);
            self.reserved.deinit(self.allocator);
            if (self.schema) |text| self.allocator.free(text);
            self.schema = null;
            if (self.built) |text| self.allocator.free(text);
            self.built = null;
            self.forget_waiting();
            self.waiting.deinit(self.allocator);
            if (self.wal_name) |name| self.allocator.free(name);
            self.wal_name = null;
            self.allocator.free(self.metric);
            self.metric = "";
        }

        fn forget_segments(self: *Self) void {
            for (self.segments.items) |*segment| segment.deinit(self);
            self.segments.clearRetainingCapacity();
        }

        /// Whether the folder has a log, that is, whether something was written to it since it was built.
        pub fn is_written(self: *const Self) bool {
            return self.wal_name != null;
        }

        pub fn shape(self: *const Self) scan.Shape {
            return .{ .dim = self.dim, .metric = std.meta.stringToEnum(scan.Metric, self.metric) orelse .l2, .dtype = self.dtype };
        }

        fn add_segment(self: *Self, path: []const u8, uuid: []const u8, n: u64, file: ?[]const u8) error{OutOfMemory}!void {
            try self.segments.ensureUnusedCapacity(self.allocator, 1);
            self.segments.appendAssumeCapacity(try self.new_segment(path, uuid, n, file));
        }

        fn new_segment(self: *Self, path: []const u8, uuid: []const u8, n: u64, file: ?[]const u8) error{OutOfMemory}!Segment {
            const allocator = self.allocator;
            var deleted = try BitSet.init(allocator, @intCast(n));
            errdefer deleted.deinit(allocator);
            var pending_delete = if (self.options.writable) try BitSet.init(allocator, @intCast(n)) else deleted;
            errdefer if (self.options.writable) pending_delete.deinit(allocator);
            const path_copy = try allocator.dupe(u8, path);
            errdefer allocator.free(path_copy);
            const uuid_copy = try allocator.dupe(u8, uuid);
            errdefer allocator.free(uuid_copy);
            const file_copy = if (file) |name| try allocator.dupe(u8, name) else null;
            return .{ .path = path_copy, .uuid = uuid_copy, .n = n, .deleted = deleted, .pending_delete = pending_delete, .file = file_copy };
        }

        /// Sets the columns; nothing changes if they are the same.
        fn take_schema(self: *Self, text: []const u8) error{OutOfMemory}!void {
            if (self.schema) |before| if (std.mem.eql(u8, before, text)) return;
            const copy = try self.allocator.dupe(u8, text);
            if (self.schema) |before| self.allocator.free(before);
            self.schema = copy;
            self.schema_version += 1;
        }

        /// The ids of a segment, in the order of its vertices; they are borrowed and must outlive this.
        pub fn attach(self: *Self, segment: usize, ids: Ids, diagnostic: *Diagnostic) Error!void {
            const one = &self.segments.items[segment];
            if (ids.len() != one.n or !ids.is_whole()) return diagnostics.damaged(diagnostic, "ids.arrow", "does not fit its index", .{});
            one.ids = ids;
        }

        /// Reads what there is.
        pub fn begin(self: *Self, built: Built, diagnostic: *Diagnostic) Error!void {
            if (self.options.writable) return calls.begin_writing(self, built, diagnostic);
            self.mutex.lock();
            defer self.mutex.unlock();
            try self.take_built(built);
            self.look_for_page();
            self.begun = true;
            errdefer self.begun = false;
            if (self.is_written()) _ = try self.look(true, diagnostic);
            self.shown_sequence = self.sequence;
        }

        pub fn take_built(self: *Self, built: Built) error{OutOfMemory}!void {
            for (self.segments.items) |segment| std.debug.assert(segment.ids != null);
            if (self.schema == null) if (built.schema) |text| try self.take_schema(text);
            if (self.kind != null) return;
            self.kind = built.kind;
            self.next_row = @max(self.next_row, built.next_row);
        }

        // ---- contents of a segment's files ----

        /// The row that has this id and is not gone.
        pub fn find_row(self: *Self, asked: Ids, row: usize, diagnostic: *Diagnostic) Error!?Row {
            if (self.kind) |kind| if ((kind == .strings) != (asked == .strings)) return null;
            if (self.delta.find_row(asked, row)) |found| return .{ .segment = delta_room.segment_number, .vertex = found };
            for (self.segments.items, 0..) |*segment, i| {
                if (segment.finder == null) try self.open_finder(segment, diagnostic);
                if (!segment.ids.?.same_kind(asked)) continue;
                const vertex = segment.finder.?.find(segment.ids.?, asked, row) orelse continue;
                const pending_delete = if (self.options.writable) &segment.pending_delete else &segment.deleted;
                if (!pending_delete.contains(vertex)) return .{ .segment = @intCast(i), .vertex = vertex };
            }
            return null;
        }

        /// The place of the id of `row`.
        fn id_of(self: *const Self, row: Row) find.Place {
            if (row.segment != delta_room.segment_number) return .{ self.segments.items[row.segment].ids.?, row.vertex };
            const place = self.delta.place_of(row.vertex);
            return .{ place.record.rows.ids, place.at };
        }

        pub fn open_finder(self: *Self, segment: *Segment, diagnostic: *Diagnostic) Error!void {
            if (!self.is_written()) { // the first write adds the file
                const bytes = try find.encode(self.allocator, segment.ids.?);
                segment.finder_owned = bytes;
                segment.finder = find.Finder.parse(bytes, segment.n) catch unreachable; // as we just made it
                return;
            }
            var buffer: [128]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ segment.path, find.file_name }) catch unreachable; // manifest.zig limits it
            const bytes = self.store.map(name) catch |err| return switch (@as(anyerror, err)) {
                error.FileNotFound => diagnostics.damaged(diagnostic, name, "is missing", .{}),
                error.EndOfStream => diagnostics.damaged(diagnostic, name, "is empty", .{}),
                else => file_error(diagnostic, name, "map", err),
            };
            segment.finder = find.Finder.parse(@alignCast(bytes), segment.n) catch |err| {
                self.store.unmap(bytes);
                return switch (err) {
                    error.Damaged => diagnostics.damaged(diagnostic, name, "is damaged", .{}),
                    error.NewerVersion => diagnostics.newer(diagnostic, name),
                };
            };
            segment.finder_map = bytes;
        }

        /// Takes over later writes of others, and waits for no sync. If the folder holds another index by now, the caller has to
        /// open it again: error.Unsupported.
        pub fn refresh(self: *Self, diagnostic: *Diagnostic) Error!Found {
            return calls.refresh(self, diagnostic);
        }

        /// With `mutex`.
        pub fn look_for_page(self: *Self) void {
            const page = self.store.open_page(.read) catch return orelse return;
            self.seen.lock();
            defer self.seen.unlock();
            self.page = page;
            self.lost_page = false;
        }

        // ---- reading what there is ----

        /// The manifest as it is now.
        pub fn read_manifest(self: *Self, diagnostic: *Diagnostic) Error!void {
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const text = try self.manifest_text(diagnostic) orelse built: {
                const manifest = self.describe_build(arena.allocator(), diagnostic) catch |err| {
                    // The first write adds live.json, then removes manifest.json: it may do so between the two looks.
                    if (err != error.NotAnIndex) return err;
                    break :built try self.manifest_text(diagnostic) orelse return err;
                };
                if (!self.begun) return self.take_manifest(&manifest, diagnostic);
                return if (self.same_segments(manifest.parts)) {} else diagnostics.replaced(diagnostic);
            };
            defer self.allocator.free(text);
            const manifest = manifest_file.parse(arena.allocator(), text) catch |err| return switch (err) {
                error.BadFolderManifest => diagnostics.damaged(diagnostic, manifest_file.file_name, "is damaged", .{}),
                error.NewerVersion => diagnostics.newer(diagnostic, manifest_file.file_name),
                error.OutOfMemory => error.OutOfMemory,
            };
            if (self.options.writable and !manifest_file.is_writable(&manifest)) return diagnostics.newer(diagnostic, manifest_file.file_name);
            try self.take_manifest(&manifest, diagnostic);
        }

        fn manifest_text(self: *Self, diagnostic: *Diagnostic) Error!?[]u8 {
            return diagnostics.read_file(self.allocator, self.store, manifest_file.file_name, manifest_file.bytes_max, diagnostic);
        }

        fn take_manifest(self: *Self, manifest: *const manifest_file.FolderManifest, diagnostic: *Diagnostic) Error!void {
            if (self.begun and self.is_written() and !std.mem.eql(u8, manifest.uuid, &self.uuid)) return diagnostics.replaced(diagnostic);
            if (self.begun and !self.same_segments(manifest.parts)) {
                // Of the same folder, or was it replaced?
                self.moved = self.is_written() or self.holds_segment_of(manifest.parts) or self.was_built_as(manifest.built);
                self.next_file = @max(self.next_file, manifest.next_file);
                return if (self.moved) diagnostics.moved(diagnostic) else diagnostics.replaced(diagnostic);
            }
            const dtype = if (manifest.dtype) |name| scan.Dtype.of(name) else try self.dtype_of_segment(manifest, diagnostic);
            if (manifest.uuid.len != self.uuid.len) return diagnostics.damaged(diagnostic, manifest_file.file_name, "has a damaged uuid", .{});
            @memcpy(&self.uuid, manifest.uuid);
            self.generation = manifest.generation;
            self.dim = manifest.dim;
            self.dtype = dtype orelse return diagnostics.damaged(diagnostic, manifest_file.file_name, "names a type that is none", .{});
            if (manifest.ids) |name| {
                self.kind = std.meta.stringToEnum(rows_file.Kind, name) orelse
                    return diagnostics.damaged(diagnostic, manifest_file.file_name, "names ids that are none", .{});
            }
            self.has_rows = manifest_file.has_rows(manifest);
            self.has_columns = manifest_file.has_columns(manifest);
            if (manifest.schema) |text| try self.take_schema(text); // where it says none, the segments did
            const built = if (manifest.built) |text| try self.allocator.dupe(u8, text) else null;
            if (self.built) |before| self.allocator.free(before);
            self.built = built;
            self.requests.clear(self.allocator);
            for (manifest.requests) |one| try self.requests.add(self.allocator, one.request, one.sequence, one.rows, one.row);
            const metric = try self.allocator.dupe(u8, manifest.metric);
            self.allocator.free(self.metric);
            self.metric = metric;
            self.manifest_sequence = manifest.sequence;
            self.flushes = manifest.flushes;
            self.next_row = manifest.next_row;
            self.next_file = @max(self.next_file, manifest.next_file); // of a folder that waits for its commit it may be behind
            const name = if (manifest.first_log.len > 0) try self.allocator.dupe(u8, manifest.first_log) else null;
            if (self.wal_name) |before| self.allocator.free(before);
            self.wal_name = name;
            if (self.same_segments(manifest.parts)) {
                for (self.segments.items, manifest.parts) |*segment, named| {
                    const file = if (named.dead) |deleted| try self.allocator.dupe(u8, deleted) else null;
                    if (segment.file) |before| self.allocator.free(before);
                    segment.file = file;
                }
                return;
            }
            self.forget_segments();
            for (manifest.parts) |segment| try self.add_segment(segment.path, segment.uuid, segment.n, segment.dead);
        }

        /// Roots of the first version do not say it; their segment does.
        fn dtype_of_segment(self: *Self, manifest: *const manifest_file.FolderManifest, diagnostic: *Diagnostic) Error!?scan.Dtype {
            if (manifest.parts.len == 0) return null;
            var buffer: [128]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ manifest.parts[0].path, "manifest.json" }) catch unreachable; // manifest.zig limits it
            var parsed = try self.read_segment_manifest(name, diagnostic);
            defer parsed.deinit();
            return scan.Dtype.of(parsed.value.dtype);
        }

        /// Whether the folder was built as the one segment that is open here, which merges may have replaced since.
        fn was_built_as(self: *Self, built: ?[]const u8) bool {
            const uuid = built orelse return false;
            return self.segments.items.len == 1 and std.mem.eql(u8, self.segments.items[0].uuid, uuid);
        }

        /// A static index that became live has the segment that it was.
        fn holds_segment_of(self: *Self, named: []const manifest_file.Segment) bool {
            for (self.segments.items) |segment| {
                for (named) |other| if (std.mem.eql(u8, segment.uuid, other.uuid)) return true;
            }
            return false;
        }

        /// The segments that are open already, which keep their ids.
        fn same_segments(self: *Self, named: []const manifest_file.Segment) bool {
            if (named.len != self.segments.items.len) return false;
            for (self.segments.items, named) |segment, other| {
                if (segment.n != other.n or !std.mem.eql(u8, segment.uuid, other.uuid)) return false;
                if (!std.mem.eql(u8, segment.path, other.path)) return false;
            }
            return true;
        }

        // ---- writing ----
        //
        // The order of a write: ids are looked up, a record is appended to the log, its effect is applied to the writer's state,
        // and searches see it once the record is as durable as `durability` asks.

        /// Rows with these ids are gone when this returns, on the device where durability asks for it. Ids that no row has are
        /// left out.
        pub fn delete(self: *Self, ids: Ids, timeout_ns: ?u64, diagnostic: *Diagnostic) Error!Done {
            if (try calls.enter(self, timeout_ns, diagnostic)) |moved| return moved;
            return calls.leave(self, self.delete_ids(ids, diagnostic), diagnostic);
        }

        fn delete_ids(self: *Self, ids: Ids, diagnostic: *Diagnostic) Error!Done {
            try self.check_kind(ids, diagnostic);
            var rows: std.ArrayList(Row) = .empty;
            defer rows.deinit(self.allocator);
            errdefer self.put_back(rows.items);
            for (0..ids.len()) |i| {
                const row = try self.find_row(ids, i, diagnostic) orelse continue;
                try self.take_row(&rows, row);
            }
            return self.write_delete(&rows, diagnostic);
        }

        /// The same for rows found by a search. If `layout` is no longer that of the folder nothing is done: Done.outcome.
        pub fn delete_rows(self: *Self, layout: u64, given: []const Row, timeout_ns: ?u64, diagnostic: *Diagnostic) Error!Done {
            if (try calls.enter(self, timeout_ns, diagnostic)) |moved| return moved;
            return calls.leave(self, self.delete_places(layout, given, diagnostic), diagnostic);
        }

        fn delete_places(self: *Self, layout: u64, given: []const Row, diagnostic: *Diagnostic) Error!Done {
            if (layout != self.layout) return .{ .outcome = .stale, .sequence = self.sequence };
            var rows: std.ArrayList(Row) = .empty;
            defer rows.deinit(self.allocator);
            errdefer self.put_back(rows.items);
            for (given) |row| {
                const count: u64 = if (row.segment == delta_room.segment_number)
                    self.delta.shown_rows
                else if (row.segment < self.segments.items.len) self.segments.items[row.segment].n else 0;
                if (row.vertex >= count) {
                    diagnostic.argument = "vertices";
                    diagnostic.say("vertex {d} of part {d} is no row", .{ row.vertex, row.segment });
                    return error.InvalidArgument;
                }
                try self.take_row(&rows, row);
            }
            return self.write_delete(&rows, diagnostic);
        }

        /// Before the first row any kind of id may come.
        fn check_kind(self: *Self, ids: Ids, diagnostic: *Diagnostic) Error!void {
            if (ids.len() == 0) return;
            const is_string = (self.kind orelse return) == .strings;
            if (is_string == (ids == .strings)) return;
            diagnostic.argument = "ids";
            diagnostic.say("the ids of this index are {s}", .{if (is_string) "strings" else "whole numbers"});
            return error.InvalidArgument;
        }

        fn take_row(self: *Self, rows: *std.ArrayList(Row), row: Row) Error!void {
            try rows.ensureUnusedCapacity(self.allocator, 1);
            if (self.mark(row)) rows.appendAssumeCapacity(row);
        }

        fn mark(self: *Self, row: Row) bool {
            if (row.segment == delta_room.segment_number) return self.delta.mark_pending_delete(row.vertex);
            return self.segments.items[row.segment].pending_delete.insert_new(row.vertex);
        }

        pub fn put_back(self: *Self, rows: []const Row) void {
            for (rows) |row| {
                if (row.segment == delta_room.segment_number) self.delta.unmark_pending_delete(row.vertex) else self.segments.items[row.segment].pending_delete.remove(row.vertex);
            }
        }

        /// Before the first write after a build. The manifest that this writes holds none of the rows taken: their record comes behind.
        fn begin_writing(self: *Self, rows: []const Row, diagnostic: *Diagnostic) Error!void {
            if (self.is_written()) return;
            self.put_back(rows);
            defer for (rows) |row| {
                _ = self.mark(row);
            };
            try self.adopt(diagnostic);
        }

        /// With the lock held; `rows` are taken already.
        fn write_delete(self: *Self, rows: *std.ArrayList(Row), diagnostic: *Diagnostic) Error!Done {
            if (rows.items.len > 0) {
                try self.begin_writing(rows.items, diagnostic);
                const places = try self.allocator.alloc(find.Place, rows.items.len);
                defer self.allocator.free(places);
                for (places, rows.items) |*place, row| place.* = self.id_of(row);
                const bytes = try rows_file.encode_delete(self.allocator, places);
                defer self.allocator.free(bytes);
                try self.append_and_show(bytes, .delete, @intCast(rows.items.len), rows.items, null, diagnostic);
            }
            const count = rows.items.len;
            rows.clearRetainingCapacity(); // written: nothing to put back
            return .{ .rows = count, .sequence = self.sequence };
        }

        /// The record goes to the log; then its rows are the delta's, and those that it takes away are dead, at once or when it is
        /// synced. Nothing fails once the record is written.
        fn append_and_show(self: *Self, bytes: []u8, kind: wal_file.Kind, count: u32, pending_delete: []const Row, record: ?*delta_room.Record, diagnostic: *Diagnostic) Error!void {
            if (record != null) {
                self.seen.lock();
                defer self.seen.unlock();
                try self.delta.reserve(count, self.dim);
            }
            const waits = self.options.durability == .sync or self.waiting.items.len > 0 or !calls.shows_at_once(self);
            const kept = if (waits) try self.allocator.dupe(Row, pending_delete) else null;
            errdefer if (kept) |rows| self.allocator.free(rows);
            if (waits) {
                self.seen.lock();
                defer self.seen.unlock();
                try self.waiting.ensureUnusedCapacity(self.allocator, 1);
            }
            try self.append(bytes, kind, count, diagnostic);
            self.seen.lock();
            defer self.seen.unlock();
            if (record) |one| self.delta.append(one);
            const records: u32 = @intCast(self.delta.records.items.len);
            if (kept) |rows| {
                self.waiting.appendAssumeCapacity(.{ .sequence = self.sequence, .rows = rows, .records = records });
            } else {
                self.show(pending_delete);
                self.delta.show(records);
                self.shown_sequence = self.sequence;
            }
        }

        /// The outcome of a call, and the state of the folder after it.
        pub fn told(self: *Self, done: Done) Done {
            var all = done;
            all.durable = calls.known_synced(self) >= done.sequence;
            all.layout = self.layout;
            all.row_count = self.delta.shown_rows;
            for (self.segments.items) |segment| all.row_count += segment.n;
            all.delta_bytes = self.delta.bytes;
            all.delta_bytes_max = self.options.delta_bytes;
            return all;
        }

        /// The outcome of a call that changes nothing: it has no rows, or one of its name was done before.
        fn answered(self: *Self, given: *const rows_file.Rows) ?Done {
            if (given.request.len > 0) if (self.requests.find(given.request)) |before| {
                return .{ .outcome = .repeated, .rows = before.rows, .sequence = before.sequence, .row = before.row };
            };
            return if (given.count > 0) null else .{ .sequence = self.sequence };
        }

        fn check_kind_of_rows(self: *Self, given: *const rows_file.Rows, diagnostic: *Diagnostic) Error!void {
            const kind = self.kind orelse return;
            if (kind == given.kind) return;
            diagnostic.argument = "ids";
            diagnostic.say("the ids of this index are {s}", .{switch (kind) {
                .row => "row numbers, which it gives itself",
                .numbers => "whole numbers",
                .strings => "strings",
            }});
            return error.InvalidArgument;
        }

        /// Marks the replaced rows as dead. If one of the new rows is refused nothing is marked, and the result names it.
        fn take_warm_start(self: *Self, rows: *const rows_file.Rows, expected: ?Expected, pending_delete: *std.ArrayList(Row), diagnostic: *Diagnostic) Error!?Done {
            const is_numbered = rows.is_numbered();
            for (0..rows.count) |i| {
                const found = try self.find_row(rows.ids, i, diagnostic);
                var refused: ?Outcome = null;
                if (expected) |places| if (found == null or !std.meta.eql(found.?, places.rows[i])) {
                    refused = .stale;
                };
                if (refused == null) if (found) |row| {
                    if (rows.is_upsert) try self.take_row(pending_delete, row) else refused = .duplicate;
                } else if (rows.kind == .row and !is_numbered and !self.gave(rows.ids.numbers[i])) {
                    refused = .no_row_number;
                };
                const outcome = refused orelse continue;
                self.put_back(pending_delete.items);
                pending_delete.clearRetainingCapacity();
                return .{ .outcome = outcome, .row = i, .sequence = self.sequence };
            }
            return null;
        }

        /// With `expected` the rows take the place of those, and nothing is done where one of them is there no more: Done.outcome.
        fn insert_rows(self: *Self, given: rows_file.Rows, expected: ?Expected, diagnostic: *Diagnostic) Error!Done {
            const count = given.count;
            const allocator = self.allocator;
            if (given.vectors.len != self.shape().row_bytes() * count or given.request.len > manifest_file.name_bytes_max) {
                diagnostic.argument = "vectors";
                diagnostic.say("{d} rows of {d} bytes were given {d} bytes of vectors", .{ count, self.shape().row_bytes(), given.vectors.len });
                return error.InvalidArgument;
            }
            if (self.answered(&given)) |done| return done;
            if (expected) |places| {
                std.debug.assert(given.is_upsert and places.rows.len == count);
                if (places.layout != self.layout) return .{ .outcome = .stale, .sequence = self.sequence };
            }
            var rows = given;
            try self.check_kind_of_rows(&given, diagnostic);
            const assigned = if (given.is_numbered()) try allocator.alloc(i64, count) else null;
            defer if (assigned) |numbers| allocator.free(numbers);
            if (assigned) |numbers| {
                for (numbers, 0..) |*number, i| number.* = @intCast(self.next_row + i);
                rows.ids = .{ .numbers = numbers };
            }

            var pending_delete: std.ArrayList(Row) = .empty;
            defer pending_delete.deinit(allocator);
            errdefer self.put_back(pending_delete.items);
            if (try self.take_warm_start(&rows, expected, &pending_delete, diagnostic)) |refused| return refused;
            const bytes = try rows_file.encode(allocator, rows, count);
            const record = delta_room.Record.create(allocator, bytes, count) catch |err| return switch (err) {
                error.Damaged => {
                    diagnostic.argument = "ids";
                    diagnostic.say("offsets of strings do not ascend within their bytes", .{});
                    return error.InvalidArgument;
                },
                error.OutOfMemory => error.OutOfMemory,
            };
            var is_logged = false;
            errdefer if (!is_logged) record.release(allocator);
            const needed = delta_room.Delta.cost(bytes.len, count, self.dim);
            if (self.delta.bytes + needed > self.options.delta_bytes) {
                self.put_back(pending_delete.items);
                pending_delete.clearRetainingCapacity();
                record.release(allocator);
                return .{ .outcome = .full, .row = needed, .sequence = self.sequence };
            }
            try self.begin_writing(pending_delete.items, diagnostic);
            const name = if (given.request.len > 0) try allocator.dupe(u8, given.request) else null;
            errdefer if (!is_logged) if (name) |text| allocator.free(text);
            if (name != null) try self.requests.items.ensureUnusedCapacity(allocator, 1);
            try self.append_and_show(bytes, .rows, count, pending_delete.items, record, diagnostic);
            is_logged = true;
            const first: u64 = if (assigned != null) self.next_row else 0;
            if (assigned != null) self.next_row += count;
            self.kind = rows.kind;
            self.has_rows = true;
            if (name) |text| self.requests.add_owned(allocator, text, self.sequence, count, first);
            const replaced = pending_delete.items.len;
            pending_delete.clearRetainingCapacity();
            return .{ .rows = count, .replaced = replaced, .row = first, .sequence = self.sequence };
        }

        /// Rows that are there when this returns, on the device where durability asks for it: all or none.
        pub fn insert(self: *Self, rows: rows_file.Rows, timeout_ns: ?u64, diagnostic: *Diagnostic) Error!Done {
            return self.insert_or_update(rows, null, timeout_ns, diagnostic);
        }

        /// The same in the place of rows that are still where the caller found them; else nothing is done: Done.outcome.
        pub fn update(self: *Self, rows: rows_file.Rows, expected: Expected, timeout_ns: ?u64, diagnostic: *Diagnostic) Error!Done {
            return self.insert_or_update(rows, expected, timeout_ns, diagnostic);
        }

        fn insert_or_update(self: *Self, rows: rows_file.Rows, expected: ?Expected, timeout_ns: ?u64, diagnostic: *Diagnostic) Error!Done {
            if (try calls.enter(self, timeout_ns, diagnostic)) |moved| return moved;
            const done = try calls.leave(self, self.insert_rows(rows, expected, diagnostic), diagnostic);
            self.code_after(done);
            return done;
        }

        /// A write that is done codes as many rows as it brought, and while more wait as many again.
        fn code_after(self: *Self, done: Done) void {
            if (done.outcome != .done or done.rows == 0) return;
            self.seen.lock();
            const delta = self.delta.hold();
            const shown = delta.shown_rows;
            const its_shape = self.shape();
            self.seen.unlock();
            defer delta.release();
            codes_file.code(delta.allocator, &delta.codes, its_shape, shown, @intCast(@min(codes_file.step_most, 2 * done.rows)));
        }

        /// Whether the index gave a row this number.
        pub fn gave(self: *const Self, number: i64) bool {
            if (number < 0 or number >= self.next_row) return false;
            for (self.reserved.items) |one| if (one.holds(number)) return false;
            return true;
        }

        /// The columns, copied as far as they have room, and their size and version.
        pub fn copy_schema(self: *Self, out: []u8) struct { usize, u64 } {
            self.mutex.lock();
            defer self.mutex.unlock();
            const text = self.schema orelse "";
            const room = @min(out.len, text.len);
            @memcpy(out[0..room], text[0..room]);
            return .{ text.len, self.schema_version };
        }

        /// Removes what no manifest names and no process holds.
        pub fn sweep(self: *Self, diagnostic: *Diagnostic) Error!void {
            if (try calls.enter(self, null, diagnostic)) |_| return;
            defer calls.leave_quietly(self);
            if (self.is_written()) try self.remove_litter(diagnostic);
        }

        // ---- folders of segments that are still to be made ----

        /// Makes one that no other has, and holds it.
        pub fn next_segment(self: *Self, buffer: *[32]u8, diagnostic: *Diagnostic) Error![]const u8 {
            try calls.enter_moved(self, diagnostic);
            defer calls.leave_quietly(self);
            while (true) {
                const name = std.fmt.bufPrint(buffer, file_names.part_stem ++ "{x:0>16}", .{self.next_file}) catch unreachable; // 21 bytes
                self.next_file += 1;
                if (try self.hold(name, diagnostic)) return name;
            }
        }

        /// False: it was there before.
        fn hold(self: *Self, name: []const u8, diagnostic: *Diagnostic) Error!bool {
            self.store.make_folder(name) catch |err| switch (@as(anyerror, err)) {
                error.PathAlreadyExists => return false,
                else => return file_error(diagnostic, name, "create", err),
            };
            try self.held.ensureUnusedCapacity(self.allocator, 1);
            const path = try self.allocator.dupe(u8, name);
            errdefer self.allocator.free(path);
            const held_ = self.store.hold(name) catch |err| return file_error(diagnostic, name, "lock", err);
            self.held.appendAssumeCapacity(.{ .path = path, .hold = held_ });
            return true;
        }

        /// Its folder goes with the next sweep, unless a manifest names it.
        pub fn release_segment(self: *Self, name: []const u8) void {
            self.mutex.lock();
            defer self.mutex.unlock();
            self.stop_holding(name);
        }

        fn stop_holding(self: *Self, name: []const u8) void {
            for (self.held.items, 0..) |one, i| {
                if (!std.mem.eql(u8, one.path, name)) continue;
                self.let_go(self.held.swapRemove(i));
                return;
            }
        }

        fn let_go(self: *Self, one: Held) void {
            self.store.release(one.hold);
            self.allocator.free(one.path);
        }

        /// The folder of a segment that a commit names: a handle that is newer than the folder did not count it.
        fn pass(self: *Self, path: []const u8) void {
            const number = file_names.number_of(path, file_names.part_stem, "") orelse return;
            self.next_file = @max(self.next_file, number + 1);
        }

        pub fn check_mode(self: *Self, diagnostic: *Diagnostic) Error!void {
            std.debug.assert(self.begun);
            if (self.options.writable) return;
            diagnostic.say("this index was opened to read", .{});
            return error.Unsupported;
        }

        /// With `mutex`.
        pub fn check_sound(self: *Self, diagnostic: *Diagnostic) Error!void {
            if (!self.poisoned) return;
            diagnostic.say("an earlier write failed in a way that leaves open what the device holds: open the index again", .{});
            return error.Io;
        }

        /// Dead from now on, for every search that begins; `seen` is held, or no search can begin yet.
        pub fn show(self: *Self, rows: []const Row) void {
            for (rows) |row| {
                if (row.segment == delta_room.segment_number) {
                    self.delta.mark_deleted(row.vertex);
                    continue;
                }
                const segment = &self.segments.items[row.segment];
                segment.deleted_count += @intFromBool(segment.deleted.insert_new(row.vertex));
            }
        }

        /// Those up to this change that waited; `seen` is held. Whether there were any.
        pub fn show_waiting(self: *Self, sequence: u64) bool {
            var count: usize = 0;
            for (self.waiting.items) |one| {
                if (one.sequence > sequence) break;
                self.show(one.rows);
                self.delta.show(one.records);
                self.shown_sequence = one.sequence;
                self.allocator.free(one.rows);
                count += 1;
            }
            if (count == 0) return false;
            self.waiting.replaceRangeAssumeCapacity(0, count, &.{});
            _ = self.version.fetchAdd(1, .acq_rel);
            return true;
        }

        pub fn forget_waiting(self: *Self) void {
            for (self.waiting.items) |one| self.allocator.free(one.rows);
            self.waiting.clearRetainingCapacity();
        }

        /// All that was written, whether it waited for a sync or not: a new manifest holds it. `seen` is held.
        pub fn show_all(self: *Self) void {
            for (self.segments.items) |*segment| {
                @memcpy(segment.deleted.words, segment.pending_delete.words);
                segment.deleted_count = segment.deleted.count();
            }
            self.delta.show_all();
            self.shown_sequence = self.sequence;
            self.forget_waiting();
            _ = self.version.fetchAdd(1, .acq_rel);
        }

        /// A sealed record behind the log's last one. On failure the log keeps its length.
        pub fn append(self: *Self, bytes: []u8, kind: wal_file.Kind, rows: u32, diagnostic: *Diagnostic) Error!void {
            const before = self.position;
            wal_file.seal(bytes, kind, rows, self.synced_offset, &self.position);
            const file = self.wal.?;
            self.store.write(file, bytes, before.offset) catch |err| {
                self.position = before;
                self.store.truncate(file, before.offset) catch {
                    self.poisoned = true;
                };
                return file_error(diagnostic, self.wal_name.?, "write to", err);
            };
            if (kind.is_change()) self.sequence = self.position.sequence;
            self.last_is_promise = kind == .promise;
        }

        /// All that was acknowledged is on the device when this returns.
        pub fn sync(self: *Self, diagnostic: *Diagnostic) Error!void {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (!self.options.writable) return;
            try self.check_sound(diagnostic);
            try calls.wait_until_synced(self, self.sequence, diagnostic);
        }

        /// The log is folded into tombstones.
        pub fn checkpoint(self: *Self, diagnostic: *Diagnostic) Error!void {
            if (try calls.enter(self, null, diagnostic)) |_| return;
            defer calls.leave_quietly(self);
            if (self.is_written()) try self.make_checkpoint(diagnostic);
        }

        /// A writer's end: everything synced, and a last record that says so, by which damage to any other shows. It goes without
        /// that record where another process writes: that one's end will have it.
        pub fn finish(self: *Self, diagnostic: *Diagnostic) Error!void {
            if (!self.options.writable or !self.begun) return;
            if (!try self.finish_synced(diagnostic) or !try self.write_last(diagnostic)) return;
            _ = try self.finish_synced(diagnostic);
        }

        /// False: the writer is poisoned, and every caller that waited for a sync has its error.
        fn finish_synced(self: *Self, diagnostic: *Diagnostic) Error!bool {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (self.poisoned) {
                if (self.options.durability == .sync or calls.known_synced(self) >= self.sequence) return false;
                try self.check_sound(diagnostic);
            }
            try calls.wait_until_synced(self, self.sequence, diagnostic);
            while (self.syncing) self.changed.wait(&self.mutex);
            if (self.wal != null and self.synced_offset < self.position.offset) try calls.sync_now(self, diagnostic);
            return true;
        }

        /// Whether it was written.
        fn write_last(self: *Self, diagnostic: *Diagnostic) Error!bool {
            var ignored: Diagnostic = .{};
            if (calls.enter(self, finish_ns, &ignored) catch return false) |_| return false;
            defer calls.leave_quietly(self);
            if (!self.is_written()) return false;
            self.remove_litter(&ignored) catch {}; // the next writer does it
            if (self.last_is_promise or self.position.offset <= wal_file.header_bytes or self.synced_offset < self.position.offset) return false;
            var record: [wal_file.record_header_bytes]u8 align(8) = @splat(0);
            try self.append(&record, .promise, 0, diagnostic);
            return true;
        }

        /// A log of an earlier manifest is closed after its last sync.
        pub fn close_wal(self: *Self) void {
            const file = self.wal orelse return;
            self.wal = null;
            if (self.syncing and self.syncing_generation == self.wal_generation) self.retired = file else self.store.close(file);
        }

        // ---- calls of more rows than the delta has room for ----
        //
        // The rows come as a segment, and never pass the delta or the log.
        //
        // The caller reserves, makes an ordinary index of the rows while others write and search, and comes back. Then the ids
        // are compared with the rows of that moment, and one manifest names the segment, the dead rows whose place it takes, and the name
        // of the call. Dead rows of the delta stand in the new log behind those that it carries over, so the manifest alone says it all.

        /// Prepares a call that makes a part of its rows before it brings them; their vectors stay with it. Nothing is
        /// done where it could not come now: Done.outcome.
        /// The folder counts as written to from here on. Numbers are given out for good: also where the call fails no row gets them.
        pub fn reserve(self: *Self, given: rows_file.Rows, timeout_ns: ?u64, diagnostic: *Diagnostic) Error!Done {
            if (try calls.enter(self, timeout_ns, diagnostic)) |moved| return moved;
            return calls.leave(self, self.reserve_rows(given, diagnostic), diagnostic);
        }

        fn reserve_rows(self: *Self, given: rows_file.Rows, diagnostic: *Diagnostic) Error!Done {
            if (self.answered(&given)) |done| return done;
            try self.check_kind_of_rows(&given, diagnostic);
            const numbered = given.is_numbered();
            if (!numbered and (!given.is_upsert or given.kind == .row)) {
                // Checked again once the segment exists; a call that is refused now needs none.
                var pending_delete: std.ArrayList(Row) = .empty;
                defer pending_delete.deinit(self.allocator);
                defer self.put_back(pending_delete.items);
                if (try self.take_warm_start(&given, null, &pending_delete, diagnostic)) |refused| return refused;
            }
            try self.begin_writing(&.{}, diagnostic);
            const first = self.next_row;
            if (numbered) {
                try self.reserved.ensureUnusedCapacity(self.allocator, 1);
                const one: Numbers = .{ .first = first, .count = given.count };
                const bytes = try rows_file.encode_reserved(self.allocator, &.{.{ one.first, one.count }});
                defer self.allocator.free(bytes);
                try self.append(bytes, .promise, 1, diagnostic);
                self.last_is_promise = false;
                self.reserved.appendAssumeCapacity(one);
                self.next_row += given.count;
            }
            return .{ .row = first, .sequence = self.sequence };
        }

        /// The rows of that segment are there when this returns, on the device: all or none.
        pub fn insert_segment(self: *Self, call: Call, timeout_ns: ?u64, diagnostic: *Diagnostic) Error!Done {
            const count = call.rows.count;
            if (call.ids.len() != count or count == 0 or (call.ids == .strings) != (call.rows.kind == .strings)) {
                diagnostic.argument = "ids";
                diagnostic.say("a part of {d} ids was made for {d} rows", .{ call.ids.len(), count });
                return error.InvalidArgument;
            }
            var finder_bytes: ?[]align(4) u8 = try self.write_finder(call.path, call.ids, diagnostic);
            defer if (finder_bytes) |bytes| self.allocator.free(bytes);
            if (try calls.enter(self, timeout_ns, diagnostic)) |moved| return moved;
            return calls.leave(self, self.add_segment_of(call, &finder_bytes, diagnostic), diagnostic);
        }

        fn add_segment_of(self: *Self, call: Call, finder_bytes: *?[]align(4) u8, diagnostic: *Diagnostic) Error!Done {
            const allocator = self.allocator;
            const count = call.rows.count;
            while (self.syncing) self.changed.wait(&self.mutex); // from here on `mutex` is kept
            try self.check_sound(diagnostic);
            if (self.answered(&call.rows)) |done| return done;
            try self.check_kind_of_rows(&call.rows, diagnostic);
            const numbered = call.rows.is_numbered();
            const reserved = if (numbered) try self.reservation_of(&call, diagnostic) else null;
            var pending_delete: std.ArrayList(Row) = .empty;
            defer pending_delete.deinit(allocator);
            errdefer self.put_back(pending_delete.items);
            if (!numbered) if (try self.take_warm_start(&call.rows, null, &pending_delete, diagnostic)) |refused| return refused;

            var segments: std.ArrayList(Segment) = .empty;
            errdefer segments.deinit(allocator);
            try segments.ensureTotalCapacity(allocator, self.segments.items.len + 1);
            segments.appendSliceAssumeCapacity(self.segments.items);
            segments.appendAssumeCapacity(try self.new_segment(call.path, call.uuid, count, null));
            const made = &segments.items[self.segments.items.len];
            errdefer made.deinit(self);
            made.ids = call.ids;
            made.finder_owned = finder_bytes.*;
            finder_bytes.* = null;
            made.finder = find.Finder.parse(made.finder_owned.?, count) catch unreachable; // as we just made it

            const before = .{ self.sequence, self.kind, self.has_rows, self.requests };
            self.requests = try self.requests.with(allocator, .{ .name = call.rows.request, .sequence = self.sequence + 1, .rows = count, .row = call.first });
            errdefer {
                // If the manifest may be on the device nonetheless, the writer is poisoned and shows the former state.
                self.requests.deinit(allocator);
                self.sequence, self.kind, self.has_rows, self.requests = before;
            }
            self.sequence += 1;
            self.kind = call.rows.kind;
            self.has_rows = true;
            self.pass(call.path);
            const numbers: ?Numbers = if (reserved) |i| self.reserved.swapRemove(i) else null;
            errdefer if (numbers) |one| self.reserved.appendAssumeCapacity(one);
            try self.write_new_manifest(segments.items, self.delta, self.flushes, diagnostic);
            var requests = before[3];
            requests.deinit(allocator);
            var warm_start = self.segments;
            {
                self.seen.lock();
                defer self.seen.unlock();
                self.segments = segments;
                self.show_all(); // rows that waited for their sync, too: the new manifest holds them
            }
            warm_start.deinit(allocator);
            self.stop_holding(call.path);
            // No row has another number than before: readers still find the rows that they have read.
            return .{ .rows = count, .replaced = pending_delete.items.len, .row = call.first, .sequence = self.sequence };
        }

        /// Which of the reservations is that of the call.
        fn reservation_of(self: *Self, call: *const Call, diagnostic: *Diagnostic) Error!usize {
            for (self.reserved.items, 0..) |one, i| {
                if (one.first != call.first or one.count != call.rows.count) continue;
                for (call.ids.numbers) |number| {
                    if (!one.holds(number)) break;
                } else return i;
            }
            diagnostic.argument = "ids";
            diagnostic.say("{d} numbers from {d} on were not reserved", .{ call.rows.count, call.first });
            return error.InvalidArgument;
        }

        // ---- a segment in the place of others ----
        //
        // A segment takes the place of the segments and rows that it was made of. Its maker takes a view, writes an ordinary index of
        // the rows that live in it, and comes back. Rows deleted or replaced meanwhile are dead in the new segment from its first
        // moment, and rows that came meanwhile stay in the delta. One manifest, written as at every checkpoint, does all of it.

        /// A segment, whose files are complete, takes the place of those segments and rows of a view that it was made of.
        /// The ids are borrowed until the folder closes or another commit takes the segment away.
        pub fn commit(self: *Self, what: Commit, diagnostic: *Diagnostic) Error!Done {
            var finder_bytes: ?[]align(4) u8 = null;
            defer if (finder_bytes) |bytes| self.allocator.free(bytes);
            if (what.segment) |segment| finder_bytes = try self.write_finder(segment.path, segment.ids, diagnostic);
            if (try calls.enter(self, null, diagnostic)) |moved| return moved;
            return calls.leave(self, self.put_in_place(what, &finder_bytes, diagnostic), diagnostic);
        }

        fn put_in_place(self: *Self, what: Commit, finder_bytes: *?[]align(4) u8, diagnostic: *Diagnostic) Error!Done {
            while (self.syncing) self.changed.wait(&self.mutex); // from here on `mutex` is kept
            try self.check_sound(diagnostic);
            if (!self.is_written()) {
                diagnostic.say("nothing was written to this index: there is nothing to fold", .{});
                return error.InvalidArgument;
            }
            const numbers = try self.allocator.alloc(u32, what.segments.len);
            defer self.allocator.free(numbers);
            if (self.is_stale(&what, numbers)) return .{ .outcome = .stale, .sequence = self.sequence };
            var segments: std.ArrayList(Segment) = .empty;
            errdefer segments.deinit(self.allocator);
            try segments.ensureTotalCapacity(self.allocator, self.segments.items.len + 1);

            // The place of its first source, so that segments stay in the order of their age.
            const at = if (numbers.len > 0) numbers[0] else self.segments.items.len;
            for (self.segments.items, 0..) |segment, i| {
                if (std.mem.indexOfScalar(u32, numbers, @intCast(i)) == null) segments.appendAssumeCapacity(segment);
            }
            var made: ?*Segment = null;
            if (what.segment) |segment| {
                const n = segment.ids.len();
                var one = try self.new_segment(segment.path, segment.uuid, n, null);
                errdefer one.deinit(self);
                one.ids = segment.ids;
                one.finder_owned = finder_bytes.*;
                finder_bytes.* = null;
                self.pass(segment.path);
                one.finder = find.Finder.parse(one.finder_owned.?, n) catch unreachable; // as we just made it
                try self.bury_taken(&one, &what, numbers, diagnostic);
                const place = @min(at, segments.items.len);
                segments.insertAssumeCapacity(place, one);
                made = &segments.items[place];
            }
            errdefer if (made) |one| one.deinit(self);
            const old_delta = self.delta;
            const delta = if (what.with_delta) try old_delta.after(@intCast(what.view.records.len)) else old_delta.hold();
            errdefer delta.release();
            const flushes = self.flushes + @intFromBool(what.with_delta);

            try self.write_new_manifest(segments.items, delta, flushes, diagnostic);
            var old_segments = self.segments;
            {
                self.seen.lock();
                defer self.seen.unlock();
                self.segments = segments;
                self.delta = delta;
                self.flushes = flushes;
                self.layout += 1;
                self.show_all(); // rows that waited for their sync, too: the new manifest holds them
            }
            old_delta.release();
            for (old_segments.items, 0..) |*segment, i| {
                if (std.mem.indexOfScalar(u32, numbers, @intCast(i)) != null) segment.deinit(self);
            }
            old_segments.deinit(self.allocator);
            if (what.segment) |segment| self.stop_holding(segment.path);
            self.remove_litter(diagnostic) catch {}; // the next sweep does it
            return .{ .sequence = self.sequence };
        }

        /// Whether another commit took one of its sources; else the number that each of its segments has by now. Folds of other segments, and
        /// of the delta, may be under way together: no folder of a segment gets the name of another.
        fn is_stale(self: *Self, what: *const Commit, numbers: []u32) bool {
            for (what.segments, numbers) |of_view, *number| {
                const path = what.view.segments[of_view].path;
                number.* = for (self.segments.items, 0..) |*segment, i| {
                    if (std.mem.eql(u8, segment.path, path)) break @intCast(i);
                } else return true;
            }
            return what.with_delta and what.view.flushes != self.flushes;
        }

        /// Rows of the sources that were taken and are gone by now are dead in the new segment.
        fn bury_taken(self: *Self, segment: *Segment, what: *const Commit, numbers: []const u32, diagnostic: *Diagnostic) Error!void {
            var taken = what.taken;
            for (numbers) |number| {
                const source = &self.segments.items[number];
                const words = source.pending_delete.words;
                defer taken = taken[words.len..];
                for (words, taken[0..words.len], 0..) |pending_delete, word, w| {
                    var new = pending_delete & word;
                    while (new != 0) : (new &= new - 1)
                        try segment.bury(source.ids.?, 64 * w + @ctz(new), diagnostic);
                }
            }
            if (!what.with_delta) return;
            for (0..what.view.rows) |i| {
                const row: u32 = @intCast(i);
                if (!self.delta.pending_delete.bits.isSet(row) or what.view.deleted.contains(row)) continue;
                const place = self.delta.place_of(row);
                try segment.bury(place.record.rows.ids, place.at, diagnostic);
            }
        }

        // ---- columns ----
        //
        // Columns that come to an index that has rows. Segments and the log stay as they are: a segment, or a record with rows, may
        // lack the last columns of the schema, and its readers know the values of its rows there. So only the manifest changes; it is
        // written as at every checkpoint.

        /// Other columns, where the schema is still of this version: one manifest, which is on the device when this returns.
        pub fn set_schema(self: *Self, text: []const u8, version: u64, diagnostic: *Diagnostic) Error!Done {
            if (try calls.enter(self, null, diagnostic)) |moved| return moved;
            return calls.leave(self, self.change_schema(text, version, diagnostic), diagnostic);
        }

        fn change_schema(self: *Self, text: []const u8, version: u64, diagnostic: *Diagnostic) Error!Done {
            while (self.syncing) self.changed.wait(&self.mutex); // from here on `mutex` is kept
            try self.check_sound(diagnostic);
            if (self.schema_version != version) return .{ .outcome = .stale, .sequence = self.sequence };
            if (text.len > schema_bytes_max) {
                diagnostic.say("columns and what they begin with take {d} bytes in the root, at most {d} fit", .{ text.len, schema_bytes_max });
                return error.InvalidArgument;
            }
            const before = self.schema;
            const had_columns = self.has_columns;
            const copy = try self.allocator.dupe(u8, text);
            self.schema = copy;
            self.has_columns = true;
            self.write_manifest(diagnostic) catch |err| {
                // If the manifest may be on the device nonetheless, the writer is poisoned and shows the former state.
                self.schema = before;
                self.has_columns = had_columns;
                self.allocator.free(copy);
                return err;
            };
            if (before) |one| self.allocator.free(one);
            self.seen.lock();
            defer self.seen.unlock();
            self.schema_version += 1;
            return .{ .sequence = self.sequence };
        }

        fn write_manifest(self: *Self, diagnostic: *Diagnostic) Error!void {
            if (!self.is_written()) return self.adopt(diagnostic);
            try self.write_new_manifest(self.segments.items, self.delta, self.flushes, diagnostic);
            self.seen.lock();
            defer self.seen.unlock();
            self.show_all(); // rows that waited for their sync, too: the new manifest holds them
        }

        /// The file of a segment whose other files are complete; all of it is on the device when this returns.
        fn write_finder(self: *Self, path: []const u8, ids: Ids, diagnostic: *Diagnostic) Error![]align(4) u8 {
            var buffer: [128]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ path, find.file_name }) catch {
                diagnostic.say("the name of a part is too long", .{});
                return error.InvalidArgument;
            };
            const bytes = try find.encode(self.allocator, ids);
            errdefer self.allocator.free(bytes);
            try diagnostics.write_file(self.store, name, bytes, diagnostic);
            try diagnostics.sync_folder(self.store, path, diagnostic);
            return bytes;
        }

        // ---- what searches see ----

        /// A copy of the dead rows of a segment; false, and nothing copied, where none is.
        pub fn copy_deleted(self: *Self, segment: usize, out: *BitSet) bool {
            self.mutex.lock();
            defer self.mutex.unlock();
            const one = &self.segments.items[segment];
            if (one.deleted_count == 0) return false;
            @memcpy(out.words, one.deleted.words);
            return true;
        }

        /// The view of a search that begins now.
        pub fn take_view(self: *Self) error{OutOfMemory}!*View {
            self.seen.lock();
            defer self.seen.unlock();
            const allocator = self.allocator;
            const view = try allocator.create(View);
            errdefer allocator.destroy(view);
            const segments = try allocator.alloc(delta_room.SegmentView, self.segments.items.len);
            var size: usize = 0;
            for (self.segments.items) |segment| size += segment.path.len + segment.uuid.len;
            const names = try allocator.alloc(u8, size);
            errdefer allocator.free(names);
            var name_bytes: std.ArrayList(u8) = .initBuffer(names);
            var made: usize = 0;
            errdefer {
                for (segments[0..made]) |*segment| if (segment.deleted) |*set| set.deinit(allocator);
                allocator.free(segments);
            }
            for (segments, self.segments.items) |*segment, *of| {
                segment.* = .{ .path = delta_room.append(&name_bytes, of.path), .uuid = delta_room.append(&name_bytes, of.uuid), .n = of.n, .deleted = null };
                if (of.deleted_count > 0) {
                    segment.deleted = try BitSet.init(allocator, @intCast(of.n));
                    @memcpy(segment.deleted.?.words, of.deleted.words);
                }
                made += 1;
            }
            const delta: *Delta = self.delta;
            const records = try allocator.dupe(*delta_room.Record, delta.records.items[0..delta.shown_records]);
            errdefer allocator.free(records);
            var deleted = try BitSet.init(allocator, delta.shown_rows);
            delta_room.copy_bits(&deleted, &delta.deleted.bits);
            view.* = .{
                .allocator = allocator,
                .layout = self.layout,
                .flushes = self.flushes,
                .sequence = self.shown_sequence,
                .schema_version = self.schema_version,
                .is_as_built = segments.len == 1 and records.len == 0 and std.mem.eql(u8, segments[0].path, manifest_file.built_segment),
                .segments = segments,
                .names = names,
                .delta = delta.hold(),
                .records = records,
                .rows = delta.shown_rows,
                .deleted = deleted,
                .shape = self.shape(),
            };
            return view;
        }

        pub fn info(self: *Self) Info {
            self.mutex.lock();
            defer self.mutex.unlock();
            var rows: u64 = 0;
            var deleted: u64 = 0;
            for (self.segments.items) |segment| {
                rows += segment.n;
                deleted += segment.deleted_count;
            }
            return .{
                .is_written = self.is_written(),
                .is_writable = self.options.writable,
                .generation = self.generation,
                .sequence = self.sequence,
                .layout = self.layout,
                .rows = rows,
                .deleted = deleted,
                .segments = self.segments.items.len,
                .delta_rows = self.delta.shown_rows,
                .delta_deleted = self.delta.deleted.count,
                .delta_bytes = self.delta.bytes,
                .delta_bytes_max = self.options.delta_bytes,
                .kind = self.kind,
                .next_row = self.next_row,
                .log_bytes = self.position.offset,
                .log_synced_bytes = @max(self.synced_offset, self.position.promise),
                .poisoned = self.poisoned,
            };
        }
    };
}

/// A folder with live data from nothing: no segment, no row, an empty log.
pub const CreateOptions = struct {
    dim: u32,
    metric: scan.Metric,
    dtype: scan.Dtype,
    /// The columns of the metadata, in the form of the caller.
    schema: ?[]const u8 = null,
    seed: ?u64 = null,
};

/// The folder is there, and holds nothing. Its manifest comes last, so a folder in which this was killed holds no index.
pub fn create(allocator: std.mem.Allocator, store: anytype, options: CreateOptions, diagnostic: *Diagnostic) Error!void {
    var prng = base.Prng.init(options.seed orelse std.crypto.random.int(u64));
    var raw: [16]u8 = undefined;
    prng.source.fill(&raw);
    const uuid = std.fmt.bytesToHex(raw, .lower);
    const header: wal_file.Header = .{ .uuid = raw, .salt = prng.next(), .first_sequence = 1 };
    const wal_name = "log-0000000000000001.velolog";
    try diagnostics.write_file(store, wal_name, &header.encode(), diagnostic);
    try diagnostics.sync_folder(store, ".", diagnostic);
    const manifest: manifest_file.FolderManifest = .{
        .uuid = &uuid,
        .generation = 1,
        .dim = options.dim,
        .metric = @tagName(options.metric),
        .dtype = @tagName(options.dtype),
        .schema = options.schema,
        .sequence = 0,
        .next_row = 0,
        .next_file = 2,
        .parts = &.{},
        .first_log = wal_name,
    };
    const text = try manifest_file.write(allocator, &manifest);
    defer allocator.free(text);
    try diagnostics.write_file(store, file_names.temporary, text, diagnostic);
    store.rename(file_names.temporary, manifest_file.file_name) catch |err| return file_error(diagnostic, manifest_file.file_name, "replace", err);
    try diagnostics.sync_folder(store, ".", diagnostic);
}
