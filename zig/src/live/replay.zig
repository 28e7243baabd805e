//! Reading what others wrote: manifest, tombstones and log, or the records of the log that are new.
const std = @import("std");
const diagnostics = @import("diagnostic.zig");
const dead_file = @import("deleted.zig");
const delta_room = @import("delta.zig");
const manifest_file = @import("manifest.zig");
const moment = @import("moment.zig");
const rows_file = @import("rows.zig");
const wal_file = @import("wal.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Row = delta_room.Row;
const file_error = diagnostics.file_error;

pub fn Replay(comptime Live: type) type {
    return struct {
        /// Reads the changes of others since, or everything. Returns whether anything changed.
        pub fn look(self: *Live, begin_again: bool, diagnostic: *Diagnostic) Error!bool {
            const sequence = self.sequence;
            const generation = self.generation;
            const schema_version = self.schema_version;
            var again = begin_again;
            var attempt: u32 = 1;
            // Of the manifest whose files could not be read.
            var failed_at: ?u64 = null;
            while (true) : (attempt += 1) {
                var read_generation: u64 = 0;
                look_once(self, if (again) null else generation, &read_generation, diagnostic) catch |err| switch (err) {
                    // A checkpoint may have removed files that this manifest names, or a write may have been undone. If the same
                    // manifest fails again, it is damage.
                    error.Corrupt => if (failed_at == read_generation or attempt == moment.attempts_max) return err else {
                        failed_at = read_generation;
                        again = true;
                        continue;
                    },
                    else => return err,
                };
                return self.sequence != sequence or self.schema_version != schema_version;
            }
        }

        /// `generation` is the one whose log was read up to `position`; null: from the start. On failure the set of dead rows
        /// stays as it was. `read_generation` becomes that of the manifest that was read.
        fn look_once(self: *Live, generation: ?u64, read_generation: *u64, diagnostic: *Diagnostic) Error!void {
            const was_written = self.is_written();
            self.moved = false;
            errdefer {
                read_generation.* = self.generation;
                self.generation = 0; // the next look begins from the start
            }
            self.read_manifest(diagnostic) catch |err| return switch (err) {
                error.NotAnIndex => diagnostics.replaced(diagnostic), // and its files are gone
                else => err,
            };
            if (!self.is_written()) return;
            if (was_written and generation == self.generation) {
                const bytes = try read_log(self, self.wal.?, self.position.offset, diagnostic);
                defer self.allocator.free(bytes);
                _ = try apply_log(self, bytes, self.position.offset, limits(self), diagnostic);
                return;
            }
            _ = try replay_all(self, limits(self), diagnostic);
            self.layout += 1; // another delta: who keeps rows of the former one has to read them again
        }

        /// Tombstones and the whole log of the manifest, into a new delta; `seen` is held, or the folder is being opened. If it fails all that
        /// searches see stays as it was.
        pub fn replay_all(self: *Live, given: Limits, diagnostic: *Diagnostic) Error!wal_file.End {
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const before = try arena.allocator().alloc([2][]const u64, self.segments.items.len);
            for (self.segments.items, before) |segment, *words| {
                words[0] = try arena.allocator().dupe(u64, segment.deleted.words);
                words[1] = try arena.allocator().dupe(u64, segment.pending_delete.words);
            }
            const delta = try delta_room.Delta.create(self.allocator);
            errdefer delta.release();
            const file = try open_log(self, diagnostic);
            errdefer self.store.close(file);
            const state = .{ self.delta, self.waiting, self.sequence, self.position, self.wal_begin, self.last_is_promise, self.wal_header, self.shown_sequence };
            self.delta = delta;
            self.waiting = .empty;
            errdefer {
                self.forget_waiting();
                self.waiting.deinit(self.allocator);
                self.delta, self.waiting, self.sequence, self.position, self.wal_begin, self.last_is_promise, self.wal_header, self.shown_sequence = state;
                for (self.segments.items, before) |*segment, words| {
                    @memcpy(segment.deleted.words, words[0]);
                    @memcpy(segment.pending_delete.words, words[1]);
                    segment.deleted_count = segment.deleted.count();
                }
            }
            for (self.segments.items) |*segment| try read_deleted(self, segment, diagnostic);
            self.sequence = self.manifest_sequence;
            self.shown_sequence = self.manifest_sequence;
            self.reserved.clearRetainingCapacity();
            const bytes = try read_log(self, file, 0, diagnostic);
            defer self.allocator.free(bytes);
            try begin_log(self, bytes, diagnostic);
            var limits_ = given;
            limits_.shown = @max(limits_.shown, self.manifest_sequence);
            const replayed = try apply_log(self, bytes, 0, limits_, diagnostic);
            self.close_wal();
            self.wal = file;
            self.wal_generation = self.generation;
            self.synced_offset = self.position.promise;
            // The rename of a manifest whose writer did not finish may not be on the device.
            if (self.is_told()) self.synced_sequence = @max(self.synced_sequence, self.manifest_sequence);
            self.checkpoint_at = self.checkpoint_bytes(self.segments.items);
            state[0].release();
            var waiting = state[1];
            for (waiting.items) |one| self.allocator.free(one.rows);
            waiting.deinit(self.allocator);
            return replayed;
        }

        fn read_deleted(self: *Live, segment: *Live.Segment, diagnostic: *Diagnostic) Error!void {
            segment.deleted.clear();
            if (segment.file) |name| {
                const bytes = try diagnostics.read_file(self.allocator, self.store, name, dead_file.file_bytes(segment.n), diagnostic) orelse
                    return diagnostics.damaged(diagnostic, name, "is missing", .{});
                defer self.allocator.free(bytes);
                dead_file.parse(bytes, segment.uuid, &segment.deleted) catch |err| return switch (err) {
                    error.Damaged => diagnostics.damaged(diagnostic, name, "is damaged", .{}),
                    error.NewerVersion => diagnostics.newer(diagnostic, name),
                };
            }
            segment.deleted_count = segment.deleted.count();
            segment.file_count = segment.deleted_count;
            if (self.options.writable) @memcpy(segment.pending_delete.words, segment.deleted.words);
        }

        fn open_log(self: *Live, diagnostic: *Diagnostic) Error!Live.File {
            const name = self.wal_name.?;
            return self.store.open_file(name, if (self.options.writable) .read_write else .read_only) catch |err| switch (@as(anyerror, err)) {
                error.FileNotFound => diagnostics.damaged(diagnostic, name, "is missing", .{}),
                else => file_error(diagnostic, name, "open", err),
            };
        }

        /// A log from a byte on, in memory that is the caller's.
        pub fn read_log(self: *Live, file: Live.File, first: u64, diagnostic: *Diagnostic) Error![]u8 {
            return diagnostics.read_opened(self.allocator, self.store, file, self.wal_name.?, first, std.math.maxInt(u63), diagnostic);
        }

        fn begin_log(self: *Live, bytes: []const u8, diagnostic: *Diagnostic) Error!void {
            const name = self.wal_name.?;
            self.wal_header = wal_file.Header.parse(bytes) catch |err| return switch (err) {
                error.BadHeader => diagnostics.damaged(diagnostic, name, "has a damaged header", .{}),
                error.NewerVersion => diagnostics.newer(diagnostic, name),
            };
            var uuid: [16]u8 = undefined;
            _ = std.fmt.hexToBytes(&uuid, &self.uuid) catch return diagnostics.damaged(diagnostic, manifest_file.file_name, "has a damaged uuid", .{});
            if (!std.mem.eql(u8, &uuid, &self.wal_header.uuid)) return diagnostics.damaged(diagnostic, name, "is the log of another index", .{});
            if (self.wal_header.first_sequence != self.manifest_sequence + 1) return diagnostics.damaged(diagnostic, name, "begins elsewhere than {s} says", .{manifest_file.file_name});
            self.position = .begin(&self.wal_header);
            self.wal_begin = self.position.offset;
            self.last_is_promise = false;
        }

        /// How far a log is read, and how far of that searches see it.
        pub const Limits = struct { read: u64 = std.math.maxInt(u64), shown: u64 = std.math.maxInt(u64) };
        /// Whether the page knows of the manifest that was read.
        pub fn is_told(self: *const Live) bool {
            const page = self.page orelse return false;
            return !self.lost_page and page.is_valid(self.boot) and page.generation.load(.acquire) == self.generation;
        }

        /// Without the folder's lock. A reader reads only what it may show; a writer knows of all that is acknowledged, or will be.
        pub fn limits(self: *Live) Limits {
            if (!self.is_told()) return .{};
            const page = self.page.?;
            const visible = page.visible.load(.acquire);
            return if (self.options.writable) .{ .read = page.sequence.load(.acquire), .shown = visible } else .{ .read = visible };
        }

        /// The records of `bytes`, which stand at `first`, from `position` on; `seen` is held, or the folder is being opened.
        pub fn apply_log(self: *Live, bytes: []const u8, first: u64, given: Limits, diagnostic: *Diagnostic) Error!wal_file.End {
            _ = self.show_waiting(given.shown);
            var scanner: wal_file.Scanner = .{ .bytes = bytes, .first = first, .position = self.position };
            while (scanner.next()) |record| {
                if (record.sequence > given.read) return .whole;
                const is_shown = record.sequence <= given.shown;
                try apply(self, &record, is_shown, diagnostic);
                self.position = scanner.position;
                self.sequence = record.sequence;
                self.synced_offset = @max(self.synced_offset, self.position.promise);
                if (record.sequence == self.manifest_sequence) self.wal_begin = self.position.offset;
                self.last_is_promise = record.kind == .promise and record.payload.len == 0;
                if (record.kind == .promise) self.may_be_replaced = true;
                if (is_shown) self.shown_sequence = record.sequence;
            }
            return scanner.end() catch diagnostics.damaged(diagnostic, self.wal_name.?, "is damaged at byte {d}", .{scanner.position.offset});
        }

        /// One that is not shown waits, as if it were our own.
        fn apply(self: *Live, record: *const wal_file.Record, is_shown: bool, diagnostic: *Diagnostic) Error!void {
            var dead: std.ArrayList(Row) = .empty;
            defer dead.deinit(self.allocator);
            switch (record.kind) {
                .promise => return take_reserved(self, record, diagnostic),
                .delete => try apply_delete(self, record, &dead, diagnostic),
                .rows, .carried => try apply_rows(self, record, &dead, diagnostic),
                .buried => {
                    for (0..record.rows) |i| {
                        if (record.payload.len < 4 * (i + 1)) return unreadable(self, record, diagnostic);
                        const row = std.mem.readInt(u32, record.payload[4 * i ..][0..4], .little);
                        if (row >= self.delta.rows) return unreadable(self, record, diagnostic);
                        _ = self.delta.mark_pending_delete(row);
                        self.delta.mark_deleted(row);
                    }
                },
                _ => return diagnostics.newer(diagnostic, self.wal_name.?),
            }
            const records: u32 = @intCast(self.delta.records.items.len);
            if (is_shown) {
                self.show(dead.items);
                self.delta.show(records);
                return;
            }
            try self.waiting.ensureUnusedCapacity(self.allocator, 1);
            self.waiting.appendAssumeCapacity(.{ .sequence = record.sequence, .rows = try dead.toOwnedSlice(self.allocator), .records = records });
        }

        fn take_reserved(self: *Live, record: *const wal_file.Record, diagnostic: *Diagnostic) Error!void {
            if (record.payload.len != rows_file.reserved_bytes * @as(usize, record.rows)) return unreadable(self, record, diagnostic);
            try self.reserved.ensureUnusedCapacity(self.allocator, record.rows);
            for (0..record.rows) |i| {
                const first, const count = rows_file.decode_reserved(record.payload, i);
                if (first > manifest_file.next_row_max or count > manifest_file.next_row_max - first) return unreadable(self, record, diagnostic);
                self.next_row = @max(self.next_row, first + count);
                self.reserved.appendAssumeCapacity(.{ .first = first, .count = count });
            }
        }

        fn unreadable(self: *Live, record: *const wal_file.Record, diagnostic: *Diagnostic) Error {
            return diagnostics.damaged(diagnostic, self.wal_name.?, "has a record {d} that cannot be", .{record.sequence});
        }

        fn apply_delete(self: *Live, record: *const wal_file.Record, dead: *std.ArrayList(Row), diagnostic: *Diagnostic) Error!void {
            const ids = rows_file.decode_ids(self.allocator, record.payload, record.rows) catch |err| return switch (err) {
                error.Damaged => unreadable(self, record, diagnostic),
                error.OutOfMemory => error.OutOfMemory,
            };
            defer rows_file.free_ids(self.allocator, ids);
            for (0..ids.len()) |i| {
                const row = try self.find_row(ids, i, diagnostic) orelse
                    return diagnostics.damaged(diagnostic, self.wal_name.?, "deletes an id in record {d} that no row has", .{record.sequence});
                try bury(self, row, dead);
            }
        }

        /// Gone; the rows that are dead once the record is shown.
        fn bury(self: *Live, row: Row, dead: *std.ArrayList(Row)) error{OutOfMemory}!void {
            try dead.append(self.allocator, row);
            if (row.segment == delta_room.segment_number) {
                _ = self.delta.mark_pending_delete(row.vertex);
                return;
            }
            // The next record of the same id must not find it; a reader has one set.
            const segment = &self.segments.items[row.segment];
            if (self.options.writable) segment.pending_delete.insert(row.vertex) else self.show(&.{row});
        }

        fn apply_rows(self: *Live, record: *const wal_file.Record, dead: *std.ArrayList(Row), diagnostic: *Diagnostic) Error!void {
            const allocator = self.allocator;
            const bytes = try allocator.alignedAlloc(u8, .@"8", wal_file.record_bytes(record.payload.len));
            @memcpy(bytes[wal_file.record_header_bytes..], record.payload);
            const taken = delta_room.Record.create(allocator, bytes, record.rows) catch |err| return switch (err) {
                error.Damaged => unreadable(self, record, diagnostic),
                error.OutOfMemory => error.OutOfMemory,
            };
            var is_taken = false;
            errdefer if (!is_taken) taken.release(allocator);
            const rows = &taken.rows;
            if (rows.vectors.len != self.shape().row_bytes() * rows.count) return unreadable(self, record, diagnostic);
            if (self.kind) |kind| if (kind != rows.kind) return unreadable(self, record, diagnostic);
            try self.delta.reserve(rows.count, self.dim);
            if (rows.request.len > 0) {
                const first: u64 = if (rows.kind == .row and rows.count > 0) @intCast(@max(0, rows.ids.numbers[0])) else 0;
                if (record.kind == .rows) try self.requests.add(allocator, rows.request, record.sequence, rows.count, first);
            }
            if (record.kind == .rows) {
                for (0..rows.count) |i| {
                    const row = try self.find_row(rows.ids, i, diagnostic) orelse continue;
                    if (!rows.is_upsert) return diagnostics.damaged(diagnostic, self.wal_name.?, "inserts an id in record {d} that a row has", .{record.sequence});
                    try bury(self, row, dead);
                }
            }
            self.kind = rows.kind;
            self.has_rows = true;
            if (rows.kind == .row) {
                for (rows.ids.numbers) |id| self.next_row = @max(self.next_row, @as(u64, @intCast(@max(0, id))) + 1);
                if (self.next_row > manifest_file.next_row_max) return unreadable(self, record, diagnostic);
            }
            self.delta.append(taken);
            is_taken = true;
        }
    };
}
